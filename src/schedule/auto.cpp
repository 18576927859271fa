#include "schedule/auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "contract/rules.h"
#include "schedule/orders/orders.h"

namespace verbatim {
namespace {

// Visits of a head whose waits may be walked one by one while a plan is made.
constexpr int64_t kProvableVisits = 1 << 17;

/// Visits of the fullest row.
int64_t longest_row(const TileMap& tiles) {
  int64_t longest = 0;
  for (int32_t q = 0; q < tiles.q_tiles(); ++q)
    longest = std::max(longest, count_tiles(tiles.row(q)));
  return longest;
}

/// Whether the longest row of visits is at least half as long again as the mean.
bool unequal_rows(const TileMap& tiles) {
  return 2 * longest_row(tiles) * tiles.q_tiles() >= 3 * tiles.count();
}

/// The share of a head's query rows that its longest sequence has: chains of others share no rows.
double longest_sequence(const TileMap& tiles) {
  const int64_t rows = tiles.q_edges.back();
  int64_t longest = 0, end = rows;
  for (auto sequence = tiles.sequences.rbegin(); sequence != tiles.sequences.rend(); ++sequence) {
    longest = std::max(longest, end - sequence->q_begin);
    end = sequence->q_begin;
  }
  return static_cast<double>(longest) / static_cast<double>(std::max<int64_t>(rows, 1));
}

/// Whether few chains or rows hold up a whole head: the longest of both have more visits than under
/// a causal mask, where they have twice the mean.
bool is_held_up(const contract::Shape& shape) {
  constexpr double kCausal = 2.1;
  const double visits = static_cast<double>(shape.visits);
  const double mean = visits / static_cast<double>(shape.columns.size()) +
                      visits / static_cast<double>(shape.q_tiles);
  return static_cast<double>(shape.longest_column + shape.longest_row) > kCausal * mean;
}

/// Visits of the longest chain.
int64_t longest_chain(const HeadOrder& head) {
  int64_t longest = 0;
  for (const Chain& chain : head.chains) longest = std::max(longest, head.visits(chain));
  return longest;
}

/// Chains that walk chunks of rows. Short documents beside a long one have none.
struct Chunks {
  explicit Chunks(const HeadOrder& head) {
    if (head.row_chunks.empty()) return;
    std::vector<char> chunked(head.tiles->kv_tiles());
    for (const TileMap::Part& part : head.tiles->parts()) {
      const auto inside = [&](int32_t q) { return part.q.first <= q && q < part.q.last; };
      if (std::ranges::any_of(head.row_chunks, inside))
        std::fill(chunked.begin() + part.kv.first, chunked.begin() + part.kv.last, 1);
    }
    int64_t in_chunks = 0;
    for (const Chain& chain : head.chains) {
      if (!chunked[chain.tile]) continue;
      const int64_t visits = head.visits(chain);
      in_chunks += visits;
      longest = std::max(longest, visits);
    }
    most = 3 * in_chunks >= 2 * head.tiles->count() * head.group;
  }

  int64_t longest = 0;  // visits; 0: there are none
  bool most = false;    // of the head's visits, 2/3 or more, are theirs
};

/// Whether most visits are of chains that walk one query head of the group.
bool walks_single_heads(const HeadOrder& head, const Chunks& chunks) {
  if (head.group == 1 || chunks.most) return false;
  int64_t alone = 0, all = 0;
  for (const Chain& chain : head.chains) {
    const int64_t visits = head.visits(chain);
    all += visits;
    if (chain.addends >= head.group) alone += visits;
  }
  return 2 * alone >= all;
}

/// Whether one chain of the head takes 2/3 of each worker's share of all heads, or more.
bool has_long_chains(const HeadOrder& head, size_t heads, int32_t workers) {
  return 3 * longest_chain(head) * workers >=
         2 * static_cast<int64_t>(heads) * head.tiles->count() * head.group;
}

/// What the placements of a backward's heads follow from: the first head, and how many there are.
struct Heads {
  Heads(const HeadOrder& first, size_t number, double l2, int32_t all_workers, int64_t bytes)
      : head(first),
        shape(*first.tiles, first.group),
        count(number),
        workers(all_workers),
        l2_bytes(l2),
        rows_bytes(static_cast<double>(bytes) / first.group),
        packed(first.tiles->sequences.size() > 1),
        chunks(first) {
    // Where documents have different orders, their sections are those of descending ones.
    const std::string order = head.name == "none"
                                  ? contract::auto_order(Pass::backward, *head.tiles, head.group)
                                  : head.name;
    const auto has = [&](const char* suffix) { return order.find(suffix) != std::string::npos; };
    shifts = order.starts_with("shift");
    equal_parts = has("/split");
    splits = equal_parts || has("/even");
    const bool waits = !packed && !shifts && !shape.gaps && !chunks.most && is_held_up(shape);
    alone = walks_single_heads(head, chunks);
    const bool together = shape.starts_together() && alone;
    held_up = waits && !together;
    // Chains of one query head that start together follow each other all the way where rows hold
    // them up, but not where some are long.
    const auto columns = static_cast<int64_t>(shape.columns.size());
    among_many = shape.longest_column * columns > shape.longest_row * shape.q_tiles;
    long_chains = waits && together && among_many;
    // Where the longest chain is a quarter longer than the mean, or chains follow each other.
    const bool unequal = 4 * shape.longest_column * columns >= 5 * shape.visits;
    uneven = (unequal || (shape.starts_together() && !shape.full)) && !held_up &&
             (order.starts_with("descending") || order == "auto");
    staggers = uneven && !long_chains && (packed || shape.starts_together());
  }

  /// How often the rows of one query head of every KV head fill L2.
  double filled() const { return static_cast<double>(count) * rows_bytes / l2_bytes; }

  const HeadOrder& head;
  const contract::Shape shape;
  const size_t count;
  const int32_t workers;
  const double l2_bytes, rows_bytes;  // Q, dO and sums of dQ of one query head
  const bool packed;
  const Chunks chunks;
  bool shifts, equal_parts, splits, held_up, uneven, staggers;
  bool alone;        // most chains walk one query head
  bool among_many;   // few chains are longer than the rest, by more than rows are
  bool long_chains;  // these hold up heads whose chains start together
};

/// Of heads whose chains rotate whole, which must run at once.
std::vector<std::string> rotating_placements(const Heads& heads) {
  const HeadOrder& head = heads.head;
  const int32_t workers = heads.workers;
  // Chains of packed sequences are of any length, and rotate with the equal ones of theirs.
  if (heads.packed) return {heads.filled() > 4 ? "staggered:2" : "longest_first", "queue"};
  // Heads start one after another; where chains are short, or of a group and long, as many side by
  // side as half the workers hold at once (measured on an H200).
  const int32_t kv_tiles = head.tiles->core().kv_tiles();
  const size_t columns = std::max(kv_tiles, 1);
  const size_t together = contract::rotating_tiles(kv_tiles);
  // One chunk of a head waits for the one before: others run beside it.
  if (together < columns)
    return {fmt::format("head_swizzled:{}:{}",
                        std::max<size_t>(static_cast<size_t>(workers) / together, 1), together)};
  const size_t half = static_cast<size_t>(workers) / 2;
  const bool alone = head.group == 1 && columns >= 32;
  return {fmt::format("head_swizzled:{}", alone ? 1 : std::max<size_t>(half / columns, 1))};
}

/// Heads that run side by side. They fill the time in which chains wait for each other, until their
/// rows leave L2; the bounds were measured on an H200 (docs/lab/backward-sm90.md) and an H100
/// (docs/lab/regret.md).
size_t side_by_side(const Heads& heads) {
  const HeadOrder& head = heads.head;
  const contract::Shape& shape = heads.shape;
  const int64_t workers = heads.workers, visits = std::max<int64_t>(shape.visits, 1);
  const size_t many = heads.workers / 4;  // four workers a head keep its rows in L2
  // Chains of other sequences share no rows, and those of other query heads run at other times.
  const double fitting =
      heads.l2_bytes / std::max(heads.rows_bytes * longest_sequence(*head.tiles), 1.0);
  // Heads whose work keeps all workers busy while one takes as long as its longest chain and row.
  const auto busy = [&] {
    return static_cast<double>(workers * (longest_chain(head) + shape.longest_row)) /
           static_cast<double>(visits * head.group);
  };
  const auto between = [](size_t low, double value, size_t high) {
    return std::clamp(static_cast<size_t>(value), low, std::max(low, high));
  };
  // Chains of a chunk of rows follow each other around it: three visits apart they seldom wait, or
  // four where few of them are long, or short documents lie beside.
  const int64_t distance = heads.uneven || is_held_up(shape) ? 4 : 3;
  const size_t around = heads.chunks.longest > 0 ? distance * workers / heads.chunks.longest : 0;
  if (heads.chunks.most) return around;
  const auto columns = static_cast<int64_t>(shape.columns.size());
  // Pieces of up to two rounds of chains, so that no worker is idle at the end.
  if (heads.shifts)
    return between((workers + columns) / (columns + 1), fitting,
                   (2 * workers + columns) / (columns + 1));
  // Where chains wait for each other, rows in L2 matter less, and not at all where those of two
  // heads would not fit.
  if (heads.held_up) {
    const auto twice = static_cast<size_t>(2 * busy());
    if (heads.among_many && (head.group == 1 || fitting < 1.5)) return std::max(many, twice);
    return fitting < 1.5 ? static_cast<size_t>(3 * busy() + 0.5) : twice;
  }
  if (heads.uneven && !shape.gaps) {
    // As many more than fit as heads that end use fewer rows, under a causal mask a third; two are
    // worth it in any case.
    const double spare =
        static_cast<double>(shape.longest_column * columns) / static_cast<double>(visits);
    const double fit = std::round(fitting * (1 + std::clamp(spare - 1, 0.0, 1.0) / 3));
    // Of packed sequences one that is long holds up its head.
    return between(heads.long_chains ? 4 : std::max<size_t>(around, 2),
                   heads.packed ? std::max(fit, std::round(1.5 * busy())) : fit, 2 * many);
  }
  if (shape.gaps || head.group == 1) return between(1, fitting, many);
  return shape.full || heads.splits ? between(4, fitting, many) : 1;
}

/// Whether chains of one or two heads of packed sequences start apart: parts of a tile that end
/// together wait for each other's additions (measured on an H200).
bool goes_spaced(const Heads& heads) {
  return heads.packed && heads.uneven && !heads.shape.gaps && heads.count <= 2 && heads.alone;
}

/// Whether all parts go side by side, the longest first: where the end of the longest chains would
/// be waited for, and where chains start apart; of packed sequences, whose chains are short, while
/// twice L2 holds the rows of all heads, and of heads that few chains hold up, while four times L2
/// do: where they make several `sections`, or parts of groups that are few rounds of tasks
/// (measured on an H200).
bool goes_longest_first(const Heads& heads, size_t sections) {
  const HeadOrder& head = heads.head;
  const contract::Shape& shape = heads.shape;
  if (head.group == 1 || shape.gaps || head.tiles->count() > kProvableVisits) return false;
  if (!heads.held_up && !heads.uneven) return false;
  const bool few = heads.count <= 2;  // no others to start behind
  const size_t tasks = head.tasks.size() * heads.count, round = heads.workers;
  const double filled = heads.filled();
  if (heads.packed) return filled <= 2 && !heads.alone;
  if (heads.alone && few) return true;
  if (heads.held_up) {
    const bool rounds = tasks >= (heads.equal_parts ? 1 : 2) * round && tasks < 6 * round;
    const bool parts = heads.equal_parts || (heads.splits && shape.starts_together());
    return filled <= 4 && (sections > 1 || (parts && rounds));
  }
  if (heads.long_chains) return filled <= 4 && tasks < 12 * round;
  return !shape.starts_together() || has_long_chains(head, heads.count, heads.workers);
}

}  // namespace

bool runs_better_in_pieces(const HeadOrder& head, size_t heads, int32_t workers) {
  if (head.name != "shift" || head.group == 1 || head.tiles->sequences.size() > 1) return false;
  const TileMap core = head.tiles->core();
  const int64_t together = std::max<int64_t>(contract::rotating_tiles(core.kv_tiles()), 1);
  // Whole heads go side by side in rounds, of which one is as long in pieces.
  const int64_t count = static_cast<int64_t>(heads) * (core.kv_tiles() / together);
  const int64_t sets = std::max<int64_t>(workers / together, 1);
  const int64_t rounds = (count + sets - 1) / sets;
  if (rounds == 1) return false;
  // Chains one visit behind each other keep each other up, in pieces less where they are many, but
  // most where others are two visits apart.
  if (core.q_tiles() == together && together > order::kWave / 4) return true;
  if (core.q_tiles() > together && core.q_tiles() < 2 * together - 1) return false;
  // Pieces cost a twentieth, and three chains of each head (measured on an H200).
  return 20 * rounds * workers > 21 * count * (together + 3);
}

std::vector<std::string> auto_placements(const std::vector<std::shared_ptr<const HeadOrder>>& heads,
                                         bool rotates, const Machine& machine, int32_t workers,
                                         int64_t head_bytes) {
  if (heads.empty() || machine.l2_bytes <= 0) return {"queue"};
  if (heads[0]->pass == Pass::forward) {
    if (!unequal_rows(*heads[0]->tiles)) return {"queue"};
    // As many heads side by side as keep their K and V in L2, so that long tasks start before short
    // ones; in equal sections, for the tasks of a small last one would end late.
    const auto count = static_cast<double>(heads.size());
    const double bytes = count * static_cast<double>(head_bytes);
    // No more sections than heads, however little of one L2 holds.
    const double sections = std::min(std::ceil(bytes / machine.l2_bytes), count);
    return {fmt::format("head_swizzled:{:.0f}", std::ceil(count / sections))};
  }
  const Heads all(*heads[0], heads.size(), machine.l2_bytes, workers, head_bytes);
  if (rotates) return rotating_placements(all);
  size_t tasks = 1;
  for (const auto& order : heads) tasks = std::max(tasks, order->tasks.size());
  // A task for each worker at least, in the nearest number of equal sections.
  const size_t fill = (static_cast<size_t>(workers) + tasks / 2) / tasks;
  const size_t together = std::max({fill, side_by_side(all), size_t{1}});
  // Of pieces no head more, for their rows would leave L2.
  const size_t more = all.shifts ? together - 1 : together / 2;
  const size_t sections = std::max<size_t>((all.count + more) / together, 1);
  const std::string name = fmt::format("{}:{}", all.staggers ? "staggered" : "head_swizzled",
                                       (all.count + sections - 1) / sections);
  if (goes_spaced(all)) return {"spaced", name};
  if (goes_longest_first(all, sections)) return {"longest_first", name};
  return {name};
}

}  // namespace verbatim
