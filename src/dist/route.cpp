#include "dist/route.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

/// What all query tiles have been visited in so far: in segments, on each of which room and stage
/// of the last visit are the same.
class Rows {
 public:
  struct Segment {
    int32_t begin, room, stage;  // -1: not visited
  };

  Rows(const std::vector<Strip>& strips, int32_t tiles) : tiles_(tiles) {
    for (const Strip& strip : strips) segments_.push_back({strip.first, strip.room, -1});
  }

  size_t find(int32_t tile) const {
    const auto after = std::ranges::upper_bound(segments_, tile, {}, &Segment::begin);
    return static_cast<size_t>(after - segments_.begin()) - 1;
  }
  const Segment& operator[](size_t s) const { return segments_[s]; }
  size_t size() const { return segments_.size(); }
  int32_t end(size_t s) const { return s + 1 < segments_.size() ? segments_[s + 1].begin : tiles_; }

  /// Tiles [from, to) of segment s have been visited in `stage`.
  void raise(size_t s, int32_t from, int32_t to, int32_t stage) {
    const Segment old = segments_[s];
    if (old.stage == stage) return;
    std::array<Segment, 3> parts{};
    size_t count = 0;
    if (old.begin < from) parts[count++] = old;
    const size_t raised = s + count;
    parts[count++] = {from, old.room, stage};
    if (to < end(s)) parts[count++] = {to, old.room, old.stage};
    segments_[s] = parts[0];
    segments_.insert(segments_.begin() + static_cast<ptrdiff_t>(s) + 1, parts.begin() + 1,
                     parts.begin() + static_cast<ptrdiff_t>(count));
    if (raised + 1 < size()) join(raised);
    if (raised > 0) join(raised - 1);
  }

 private:
  /// Makes one segment of s and the next, if they are alike.
  void join(size_t s) {
    const Segment &a = segments_[s], &b = segments_[s + 1];
    if (a.room == b.room && a.stage == b.stage)
      segments_.erase(segments_.begin() + static_cast<ptrdiff_t>(s) + 1);
  }

  int32_t tiles_;
  std::vector<Segment> segments_;
};

/// Follows chains on their walks.
class Router {
 public:
  Router(const WholeOrder& whole, const Owners& owners, int32_t together)
      : whole_(whole), order_(*whole.order), owners_(owners), together_(together) {
    for (const auto& strips : owners.rows) rows_.emplace_back(strips, order_.tiles->q_tiles());
  }

  Routes find() {
    whole_.for_each_walk([this](const Walk& walk) { go(walk); });
    for (size_t h = 0; h < rows_.size(); ++h)
      for (size_t s = 0; s < rows_[h].size(); ++s)
        if (rows_[h][s].stage >= 0)
          routes_.q_tiles.push_back({rows_[h][s].room, rows_[h][s].begin, rows_[h].end(s)});
    routes_.starts = first_stage_ + 1;
    if (!std::ranges::is_sorted(routes_.fellows, {}, &Fellows::chain))
      std::ranges::sort(routes_.fellows, {}, &Fellows::chain);
    check_each_once();
    return std::move(routes_);
  }

 private:
  /// A chain on its way.
  struct Way {
    Passes passes;
    int32_t pass = -1;
    int32_t room = -1, stage = 0;  // of the last visit
    std::vector<Link> links;
  };
  /// The tiles of a pass, as far as its links are the same whichever of them come first and last;
  /// of `heads` query heads behind each other, one pass each.
  struct Span {
    int32_t q_head = 0, heads = 1;
    bool up = true;
    int32_t first = 0, first_until = 0, last_from = 0, last = 0;
  };

  void check_each_once() const {
    int32_t next = 0;
    bool once = true;
    for (const Fellows& own : routes_.fellows) {
      once = once && own.chain == next;
      next += own.count;
    }
    if (!once || std::cmp_not_equal(next, whole_.chains.size()))
      throw Error(
          ErrorCode::invalid_plan, "dist",
          fmt::format("not each of the {} chains of an order ends once", whole_.chains.size()));
  }

  void go(const Walk& walk) {
    const Chain& chain = whole_.chains[static_cast<size_t>(walk.chain)];
    const bool ends = walk.run_end == chain.run_end &&
                      (walk.last == kAllOfRun ||
                       walk.last == order_.runs[static_cast<size_t>(chain.run_end) - 1].count);
    if (!ends || walk.run_begin != chain.run_begin || walk.first != 0)
      return go_part(walk, chain, ends);
    // Those behind a chain without gaps repeat it, as far as they start in its stage.
    for (int32_t c = walk.chain, end = c + walk.alike; c < end;) {
      int32_t repeating = 1;
      if (go_whole(c)) repeating = std::min(end - c, together_ - (started_ - 1) % together_);
      started_ += repeating - 1;
      went(c, repeating);
      c += repeating;
    }
  }

  /// Whether the chain has visits and no gaps.
  bool go_whole(int32_t c) {
    const Chain& chain = whole_.chains[static_cast<size_t>(c)];
    if (chain.run_begin < chain.run_end && started_++ % together_ == 0) {
      first_stage_ = started_ / together_;
      last_.clear();
    }
    spans_.clear();
    find_spans(chain);
    const bool straight = !spans_.empty();
    if (straight && repeats()) return true;
    Way way;
    way.stage = first_stage_;
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const Run& run = order_.runs[r];
      visit(way, run, 0, run.count);
    }
    last_.clear();
    arrive(way, chain);
    if (straight) remember(routes_.lists.back());
    return straight;
  }

  void go_part(const Walk& walk, const Chain& chain, bool ends) {
    if (ways_.empty()) ways_.resize(whole_.chains.size());
    Way& way = ways_[static_cast<size_t>(walk.chain)];
    for (int32_t r = walk.run_begin; r < walk.run_end; ++r) {
      const Run& run = order_.runs[r];
      visit(way, run, r == walk.run_begin ? walk.first : 0,
            r + 1 == walk.run_end ? std::min(walk.last, run.count) : run.count);
    }
    last_.clear();
    if (!ends) return;
    arrive(way, chain);
    went(walk.chain, 1);
  }

  /// Chains behind each other went over the last list.
  void went(int32_t chain, int32_t count) {
    const auto list = static_cast<int32_t>(routes_.lists.size()) - 1;
    std::vector<Fellows>& all = routes_.fellows;
    if (!all.empty() && all.back().list == list && all.back().chain + all.back().count == chain) {
      all.back().count += count;
    } else {
      all.push_back({chain, count, list});
    }
  }

  /// The chain has made its last visit.
  void arrive(Way& way, const Chain& chain) {
    if (way.links.empty()) way.links.push_back({0, room_of(owners_.tiles, chain.tile), {}});
    if (routes_.lists.empty() || routes_.lists.back() != way.links)
      routes_.lists.push_back(std::move(way.links));
    way.links.clear();
  }

  void visit(Way& way, const Run& run, int32_t begin, int32_t end) {
    bool turned = false;
    if (begin == 0) {
      const int32_t pass = way.passes.next(run);
      turned = std::exchange(way.pass, pass) != pass;
    }
    if (std::abs(run.step) == 1) return sweep(way, run, begin, end, turned);
    for (int32_t i = begin; i < end; ++i) sweep(way, run, i, i + 1, turned && i == begin);
  }

  /// Visits [begin, end) of a run, whose tiles lie behind each other. `turned`: they start a pass.
  void sweep(Way& way, const Run& run, int32_t begin, int32_t end, bool turned) {
    Rows& rows = rows_[run.q_head];
    const bool up = run.step > 0;
    const auto [low, high] = std::minmax({run.tile(begin), run.tile(end - 1)});
    for (int32_t tile = run.tile(begin); low <= tile && tile <= high;) {
      const size_t s = rows.find(tile);
      const Rows::Segment at = rows[s];
      const int32_t from = std::max(low, at.begin), to = std::min(high + 1, rows.end(s));
      const int32_t after = way.room < 0 || way.room == at.room ? way.stage : way.stage + 1;
      const int32_t stage = std::max(after, at.stage);
      if (way.room != at.room || way.stage != stage) {
        const int32_t place = turned ? pass_begin(up) : up ? from : to - 1;
        way.links.push_back({stage, at.room, {way.pass, place}});
        way.room = at.room;
        way.stage = stage;
      }
      turned = false;
      rows.raise(s, from, to, stage);
      tile = up ? to : from - 1;
    }
  }

  /// Where a link begins that begins with a pass.
  int32_t pass_begin(bool up) const { return up ? 0 : order_.tiles->q_tiles() - 1; }

  /// spans_ = the passes of a chain; none if one has a gap.
  void find_spans(const Chain& chain) {
    Passes passes;
    int32_t pass = -1, last_head = -1;  // of several at once
    bool gaps = false;
    // Whether the first of the runs begins a pass.
    const auto add = [&](int32_t q_head, RunView runs) {
      std::optional<bool> begins;
      gaps = gaps || q_head == last_head;  // a pass may go on
      for (Run run : runs) {
        run.q_head = q_head;
        const int32_t before = std::exchange(pass, passes.next(run));
        const bool fresh = pass != before, up = run.step > 0;
        gaps = gaps || std::abs(run.step) != 1 ||
               (!fresh && run.first != spans_.back().last + (up ? 1 : -1));
        const int32_t last = run.tile(run.count - 1);
        if (fresh) spans_.push_back({q_head, 1, up, run.first, run.first, run.first, last});
        spans_.back().last = last;
        if (!begins) begins = fresh;
      }
      return begins.value_or(false);
    };
    const auto add_all = [&](int32_t q_head, int32_t heads, RunView runs) {
      const size_t before = spans_.size();
      const bool begins = add(q_head, runs);
      if (heads == 1) return;
      if (begins && spans_.size() == before + 1) {
        spans_.back().heads = heads;
        last_head = q_head + heads - 1;
        passes = {};
        pass = -1;
      } else {
        for (int32_t h = q_head + 1; h < q_head + heads; ++h) add(h, runs);
      }
    };
    order_.runs.for_each_repeat(chain.run_begin, chain.run_end, near_, add_all);
    if (gaps) spans_.clear();
  }

  /// Whether a chain of spans_ goes the way of the one before: its tiles are among that one's,
  /// which have the stages that it left, and begin and end in the same links.
  bool repeats() const {
    return std::ranges::equal(spans_, last_, [](const Span& a, const Span& b) {
      const auto in_turn = [&](int32_t x, int32_t y, int32_t z) {
        return a.up ? x <= y && y <= z : x >= y && y >= z;
      };
      return a.q_head == b.q_head && a.heads == b.heads && a.up == b.up &&
             in_turn(b.first, a.first, b.first_until) && in_turn(b.last_from, a.last, b.last);
    });
  }

  /// last_ = spans_, of a chain that went over `links`.
  void remember(const std::vector<Link>& links) {
    std::swap(last_, spans_);
    for (Span& span : last_) span.first_until = span.last, span.last_from = span.first;
    auto span = last_.begin();
    int32_t passes = span->heads;  // up to here
    for (const Link& link : links) {
      while (passes <= link.begin.pass) passes += (++span)->heads;
      const int32_t tile = link.begin.tile;
      if (tile == pass_begin(span->up)) continue;
      if (span->up) {
        span->first_until = std::min(span->first_until, tile - 1);
        span->last_from = std::max(span->last_from, tile);
      } else {
        span->first_until = std::max(span->first_until, tile + 1);
        span->last_from = std::min(span->last_from, tile);
      }
    }
  }

  const WholeOrder& whole_;
  const HeadOrder& order_;
  const Owners& owners_;
  int32_t together_;
  std::vector<Rows> rows_;                 // by query head of the group
  size_t near_ = 0;                        // in the order's runs
  std::vector<Way> ways_;                  // by chain, where walks are not whole ones
  std::vector<Span> spans_;                // of this walk
  std::vector<Span> last_;                 // of the last walk, if it was a whole chain without gaps
  int32_t started_ = 0, first_stage_ = 0;  // whole chains, and the stage of the next
  Routes routes_;
};

}  // namespace

int32_t room_of(const std::vector<Strip>& strips, int32_t tile) {
  return std::prev(std::ranges::upper_bound(strips, tile, {}, &Strip::first))->room;
}

Routes find_routes(const WholeOrder& whole, const Owners& owners, int32_t together) {
  return Router(whole, owners, together).find();
}

}  // namespace verbatim::dist
