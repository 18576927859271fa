#include "plan/alike.h"

#include <algorithm>
#include <cstdlib>

#include "core/threads.h"

namespace verbatim {
namespace {

/// Reads chains as they are issued.
class Reader {
 public:
  /// Writes what it finds behind what is `found`.
  Reader(const HeadOrder& order, ChainRows& found)
      : chains_(order.chains), runs_(order.runs), found_(found) {}

  /// Chains [begin, end).
  void read(int32_t begin, int32_t end) {
    for (int32_t c = begin, first = begin; c < end; first = c) {
      ChainRow row = row_of(chains_[c], c);
      const int32_t way = ++c < end ? chains_[c].tile - row.tile : 0;
      if (std::abs(way) == 1 && !(is_piece(first) || is_piece(c))) {
        row.step = way;
        repeat_until_ =
            runs_.repeats_until(chains_[first].run_begin, chains_[first].run_end, near_);
        while (c < end && goes_on(c, way)) {
          const Chain& chain = chains_[c];
          if (chain.addend != row.addend || chain.addends != row.addends) {
            add(row, c);
            row = {c, 0, chain.tile, way, chain.addend, chain.addends};
          }
          c = behind_repeats(c + 1, end, way);
        }
      }
      add(row, c);
      found_.alike.push_back({first, c - first});
    }
  }

 private:
  bool is_piece(int32_t c) const { return chains_[c].continues || chains_[c].pauses; }

  /// Whether a chain, `way` tiles from the one before, is alike.
  bool goes_on(int32_t c, int32_t way) {
    const Chain &before = chains_[c - 1], &chain = chains_[c];
    if (chain.tile - before.tile != way || is_piece(c)) return false;
    if (chain.run_begin == before.run_end && static_cast<size_t>(chain.run_end) <= repeat_until_ &&
        chain.run_end - chain.run_begin == before.run_end - before.run_begin)
      return true;
    if (!runs_.are_next(before.run_begin, before.run_end, chain.run_begin, chain.run_end, near_))
      return false;
    repeat_until_ = runs_.repeats_until(chain.run_begin, chain.run_end, near_);
    return true;
  }

  /// As far from c on as chains, before `end`, have the runs of c - 1 times over and its place:
  /// what goes_on() finds out, in one look at each.
  int32_t behind_repeats(int32_t c, int32_t end, int32_t way) const {
    Chain next = chains_[c - 1];
    const int32_t runs = next.run_end - next.run_begin;
    const auto as_next = [&](const Chain& chain) {
      next.tile += way;
      next.run_begin += runs;
      next.run_end += runs;
      return ((chain.tile ^ next.tile) | (chain.run_begin ^ next.run_begin) |
              (chain.run_end ^ next.run_end) | (chain.addend ^ next.addend) |
              (chain.addends ^ next.addends) | int32_t{chain.continues} | int32_t{chain.pauses}) ==
             0;
    };
    if (runs > 0)
      end = std::min(end, c + (static_cast<int32_t>(repeat_until_) - next.run_end) / runs);
    while (c < end && as_next(chains_[c])) ++c;
    return c;
  }

  /// Ends a row before chain `end`.
  void add(ChainRow row, int32_t end) {
    row.count = end - row.chain;
    if (row.count == 1) row.step = 1;
    found_.rows.push_back(row);
  }

  const std::vector<Chain>& chains_;
  const Runs& runs_;
  size_t near_ = 0;          // in the runs
  size_t repeat_until_ = 0;  // up to which runs repeat those of the chain before
  ChainRows& found_;
};

constexpr int32_t kChainsWorthThreads = 1 << 17;  // fewer are read before threads wake

/// Where to cut chains [begin, end) in at most `count` stretches, between chains that are not
/// alike: begin first, end last.
std::vector<int32_t> cut(const std::vector<Chain>& chains, int32_t begin, int32_t end, int count) {
  std::vector<int32_t> at{begin};
  const int32_t stretch = std::max((end - begin + count - 1) / count, kChainsWorthThreads);
  for (int32_t c = begin + stretch; c < end; c += stretch) {
    while (c < end && std::abs(chains[c].tile - chains[c - 1].tile) == 1) ++c;
    if (c < end) at.push_back(c);
  }
  at.push_back(end);
  return at;
}

}  // namespace

ChainRows rows_of_chains(const HeadOrder& order) {
  const int cores = std::ssize(order.chains) > kChainsWorthThreads ? core_count() : 1;
  ChainRows found;
  Reader reader(order, found);
  const std::vector<Task>& tasks = order.tasks;
  for (size_t t = 0; t < tasks.size();) {
    const int32_t begin = tasks[t].chain_begin;
    int32_t end = tasks[t].chain_end;
    for (++t; t < tasks.size() && tasks[t].chain_begin == end; ++t) end = tasks[t].chain_end;
    if (cores == 1 || end - begin <= kChainsWorthThreads) {
      reader.read(begin, end);
      continue;
    }
    const std::vector<int32_t> at = cut(order.chains, begin, end, cores);
    std::vector<ChainRows> parts(at.size() - 1);
    for_each_in_parallel(cores, std::ssize(parts),
                         [&](int64_t i) { Reader(order, parts[i]).read(at[i], at[i + 1]); });
    for (const ChainRows& part : parts) {
      found.alike.insert(found.alike.end(), part.alike.begin(), part.alike.end());
      found.rows.insert(found.rows.end(), part.rows.begin(), part.rows.end());
    }
  }
  return found;
}

}  // namespace verbatim
