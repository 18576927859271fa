// The JSON form of a distributed plan (docs/schema.md). As for a plan, reading proves what it
// reads: every number has its range, and verify() accepts the rest.
#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "core/json_node.h"
#include "dist/passes.h"
#include "dist/sizes.h"
#include "verbatim/dist.h"

namespace verbatim {
namespace {

using Json = nlohmann::ordered_json;  // writes keys in the order below

constexpr const char* kOperation = "dist_plan.from_json";
constexpr std::array<std::string_view, 2> kSpaces{"home", "work"};  // by Space

Json to_array(const Interval& interval) { return {interval.begin, interval.end}; }
Json to_array(const RowRange& range) { return {range.batch, range.rows.begin, range.rows.end}; }
Json to_array(const Box& box) {
  return {to_string(box.operand), box.range.batch, box.range.rows.begin,
          box.range.rows.end,     box.heads.begin, box.heads.end};
}
Json to_array(const CarriedSum& sum) { return {sum.head, sum.kv_tile, sum.block, sum.count}; }
Json to_array(const Carry& carry) { return {carry.in, carry.out}; }
Json to_array(const Stretch& stretch) {
  return {stretch.chain,      stretch.count,    stretch.begin.pass,
          stretch.begin.tile, stretch.end.pass, stretch.end.tile};
}

template <class Records>
Json to_arrays(const Records& records) {
  Json list = Json::array();
  for (const auto& record : records) list.push_back(to_array(record));
  return list;
}

class Writer {
 public:
  explicit Writer(const DistPlan& plan) : plan_(plan) {}

  std::string text() {
    Json ranks = Json::array();
    for (const RankPlan& rank : plan_.ranks) ranks.push_back(rank_json(rank));
    const DistOptions& options = plan_.options;
    return Json{{"whole", Json::parse(to_json(plan_.whole))},
                {"world", options.world},
                {"strategy", options.strategy},
                {"shard", plan_.shard},
                {"ulysses_size", options.ulysses_size},
                {"ring_window", options.ring_window},
                {"overlapped", options.overlapped},
                {"parts", std::move(parts_)},
                {"ranks", std::move(ranks)}}
        .dump();
  }

 private:
  Json rank_json(const RankPlan& rank) {
    Json steps = Json::array();
    for (const Step& step : rank.steps) std::visit([&](const auto& s) { write(steps, s); }, step);
    Json rooms = Json::array();
    for (const Room& room : rank.rooms)
      rooms.push_back({{"q", to_arrays(room.q.ranges())},
                       {"heads", to_array(room.heads)},
                       {"in_place", room.in_place}});
    return {{"home_q", to_arrays(rank.home_q.ranges())},
            {"home_kv", to_arrays(rank.home_kv.ranges())},
            {"rooms", std::move(rooms)},
            {"kv", to_arrays(rank.kv.ranges())},
            {"ended", to_arrays(rank.ended.ranges())},
            {"kv_heads", to_array(rank.kv_heads)},
            {"kv_slots", rank.kv_slots},
            {"blocks", rank.blocks},
            {"landing", rank.landing},
            {"steps", std::move(steps)}};
  }

  template <class T>
  void write(Json& steps, const T& step) {
    steps.push_back(step_json(step));
  }
  /// Tile by tile.
  void write(Json& steps, const Add& add) {
    for (int32_t i = 0; i < add.count; ++i) steps.push_back(step_json(add.tile(i)));
  }

  Json step_json(const Hold& hold) {
    return {{"step", "hold"}, {"head", hold.head}, {"slot", hold.slot}};
  }
  /// What both ends of a message have.
  template <class End>
  Json transfer_json(const char* name, const char* other, int32_t rank, const End& end) {
    return {{"step", name},
            {other, rank},
            {"message", end.message},
            {"space", space_name(end.space)},
            {"room", end.room},
            {"bytes", dist::message_bytes(plan_, end.boxes, end.sums)},
            {"boxes", to_arrays(end.boxes)},
            {"sums", to_arrays(tile_by_tile(end.sums))}};
  }
  /// Sums whose tiles go down.
  static std::vector<CarriedSum> tile_by_tile(const CarriedSums& sums) {
    std::vector<CarriedSum> all;
    for (const CarriedSum& sum : sums) {
      if (sum.step > 0) all.push_back(sum);
      for (int32_t i = 0; sum.step < 0 && i < sum.count; ++i)
        all.push_back({sum.head, sum.kv_tile - i, sum.block + i});
    }
    return all;
  }
  Json step_json(const Send& send) { return transfer_json("send", "to", send.to, send); }
  Json step_json(const Expect& expect) {
    return {
        {"step", "expect"}, {"from", expect.from}, {"message", expect.message}, {"at", expect.at}};
  }
  Json step_json(const Receive& receive) {
    return transfer_json("receive", "from", receive.from, receive);
  }
  Json step_json(const Copy& copy) {
    return {{"step", "copy"},
            {"from", space_name(copy.from)},
            {"to", space_name(copy.to)},
            {"room", copy.room},
            {"boxes", to_arrays(copy.boxes)}};
  }
  Json step_json(const Compute& compute) {
    Json heads = Json::array();
    for (const HeadPart& own : compute.heads)
      heads.push_back({{"head", own.head},
                       {"part", number_of(*own.part)},
                       {"carries", to_arrays(own.carries)}});
    return {{"step", "compute"}, {"room", compute.room}, {"heads", std::move(heads)}};
  }
  Json step_json(const TileSums& sums) {
    return {
        {"step", "add"}, {"head", sums.head}, {"kv_tile", sums.kv_tile}, {"blocks", sums.blocks}};
  }

  static std::string_view space_name(Space space) { return kSpaces[static_cast<size_t>(space)]; }

  size_t number_of(const OrderPart& part) {
    const auto [at, fresh] = number_.try_emplace(&part, parts_.size());
    if (fresh) {
      const auto order = std::ranges::find(plan_.whole.orders, part.whole);
      parts_.push_back({{"order", order - plan_.whole.orders.begin()},
                        {"stretches", to_arrays(part.stretches)}});
    }
    return at->second;
  }

  const DistPlan& plan_;
  std::map<const OrderPart*, size_t> number_;
  Json parts_ = Json::array();
};

class Reader {
 public:
  DistPlan read(const JsonNode& root) {
    plan_.whole = plan_from_json(root.member("whole").value.dump());
    const JsonNode ranks = root.member("ranks");
    plan_.options = {.world = within<int32_t>(root.member("world"), 1, kMostRanks),
                     .strategy = root.member("strategy").text(),
                     .shard = root.member("shard").text(),
                     .ulysses_size = root.member("ulysses_size").int32(),
                     .ring_window = root.member("ring_window").int32(),
                     .overlapped = root.member("overlapped").boolean()};
    plan_.shard = plan_.options.shard;
    if (std::cmp_not_equal(ranks.size(), plan_.options.world))
      throw Error(ErrorCode::invalid_plan, kOperation, "'ranks' are not those of the world",
                  {"ranks", fmt::to_string(ranks.size()), fmt::to_string(plan_.options.world), ""});
    for (const auto& order : plan_.whole.orders) most_tiles_ = std::max(most_tiles_, tiles(*order));
    for (const int32_t order : plan_.whole.order_of_head)
      // With what comes while as much leaves, and gaps.
      most_blocks_ += 4 * std::ssize(plan_.whole.orders[order]->chains);
    parts_ = root.member("parts").items([this](const JsonNode& node) { return read_part(node); });
    for (size_t r = 0; r < ranks.size(); ++r) plan_.ranks.push_back(read_rank(ranks.item(r)));
    verify(plan_);
    return std::move(plan_);
  }

 private:
  const Problem& problem() const { return plan_.whole.problem; }
  static int64_t tiles(const HeadOrder& order) {
    return std::max(order.tiles->q_tiles(), order.tiles->kv_tiles());
  }

  /// A number of [least, most].
  template <class T>
  static T within(const JsonNode& node, int64_t least, int64_t most) {
    return static_cast<T>(within(node, node.int64(), least, most));
  }
  static int64_t within(const JsonNode& node, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
      throw Error(ErrorCode::invalid_plan, kOperation,
                  fmt::format("'{}' is out of range", node.name),
                  {node.name, fmt::to_string(value), fmt::format("{} to {}", least, most),
                   fmt::to_string(std::clamp(value, least, std::max(least, most)))});
    return value;
  }
  /// Of some names, the number of one.
  static size_t one_of(const JsonNode& node, std::span<const std::string_view> names) {
    const std::string text = node.text();
    const auto at = std::ranges::find(names, text);
    if (at == names.end())
      throw Error(
          ErrorCode::invalid_plan, kOperation, fmt::format("'{}' is none of its names", node.name),
          {node.name, text, fmt::format("{}", fmt::join(names, ", ")), std::string(names.front())});
    return static_cast<size_t>(at - names.begin());
  }
  static Space space(const JsonNode& node) { return static_cast<Space>(one_of(node, kSpaces)); }

  /// Part of [0, most].
  static Interval interval(const JsonNode& node, const Interval& value, int64_t most) {
    within(node, value.end, 0, most);
    within(node, value.begin, 0, value.end);
    return value;
  }
  Interval heads(const JsonNode& node, int64_t most) const {
    const auto f = node.fields<int64_t, 2>();
    return interval(node, {f[0], f[1]}, most);
  }
  RowRange range(const JsonNode& node, int64_t batch, const Interval& rows, bool kv) const {
    return {within(node, batch, 0, problem().batch - 1),
            interval(node, rows, kv ? problem().kv_len : problem().q_len)};
  }
  HeldRows held(const JsonNode& node, bool kv) const {
    return HeldRows(node.items([&](const JsonNode& item) {
      const auto f = item.fields<int64_t, 3>();
      return range(item, f[0], {f[1], f[2]}, kv);
    }));
  }

  std::shared_ptr<const OrderPart> read_part(const JsonNode& node) const {
    const auto order = within<size_t>(node.member("order"), 0, std::ssize(plan_.whole.orders) - 1);
    const auto place = [this](const JsonNode& at, int32_t pass, int32_t tile) -> Place {
      within(at, pass, -1, dist::kEnd.pass);
      within(at, tile, -1, most_tiles_);
      return {pass, tile};
    };
    auto stretches = node.member("stretches").items([&](const JsonNode& item) {
      const auto f = item.fields<int32_t, 6>();
      return Stretch{f[0], f[1], place(item, f[2], f[3]), place(item, f[4], f[5])};
    });
    return std::make_shared<const OrderPart>(
        OrderPart{plan_.whole.orders[order], std::move(stretches)});
  }

  Room read_room(const JsonNode& node, const HeldRows& home) const {
    const JsonNode in_place = node.member("in_place");
    Room room{held(node.member("q"), false), heads(node.member("heads"), problem().q_heads),
              in_place.boolean()};
    if (room.in_place && (room.q != home || room.heads != Interval{0, problem().q_heads}))
      throw Error(ErrorCode::invalid_plan, kOperation,
                  fmt::format("'{}', but q is not home_q with all heads", in_place.name),
                  {in_place.name, "true", "false", "false"});
    return room;
  }

  RankPlan read_rank(const JsonNode& node) {
    RankPlan rank;
    rank.home_q = held(node.member("home_q"), false);
    rank.home_kv = held(node.member("home_kv"), true);
    const JsonNode rooms = node.member("rooms");
    within(rooms, static_cast<int64_t>(rooms.size()), 0,  // no more than can be used
           static_cast<int64_t>(node.member("steps").size()) + 1);
    rank.rooms = rooms.items([&](const JsonNode& room) { return read_room(room, rank.home_q); });
    rank.kv = held(node.member("kv"), true);
    rank.ended = held(node.member("ended"), true);
    rank.kv_heads = heads(node.member("kv_heads"), problem().kv_heads);
    rank.kv_slots =
        within<int32_t>(node.member("kv_slots"), 0, std::ssize(plan_.whole.order_of_head));
    blocks_ = rank.blocks = within<int32_t>(node.member("blocks"), 0, most_blocks_);
    rank.steps =
        node.member("steps").items([this](const JsonNode& step) { return read_step(step); });
    int64_t received = 0;
    for (const Step& step : rank.steps)
      if (const auto* receive = std::get_if<Receive>(&step))
        received += dist::aligned(dist::message_bytes(plan_, receive->boxes, receive->sums));
    rank.landing = within<int64_t>(node.member("landing"), 0, received);
    return rank;
  }

  Boxes boxes(const JsonNode& node) const {
    std::array<std::string_view, kOperands> names;
    for (int o = 0; o < kOperands; ++o) names[o] = to_string(static_cast<Operand>(o));
    return node.items([&](const JsonNode& item) {
      if (item.size() != 6) item.fields<int64_t, 6>();  // throws
      const auto operand = static_cast<Operand>(one_of(item.item(0), names));
      const auto field = [&](size_t i) { return item.item(i).int64(); };
      const bool kv = dist::on_kv_axis(operand);
      return Box{operand, range(item, field(1), {field(2), field(3)}, kv),
                 interval(item, {field(4), field(5)}, kv ? problem().kv_heads : problem().q_heads)};
    });
  }

  int32_t head(const JsonNode& node, int64_t value) const {
    return static_cast<int32_t>(within(node, value, 0, std::ssize(plan_.whole.order_of_head) - 1));
  }
  int32_t head(const JsonNode& node) const { return head(node, node.int64()); }
  int64_t kv_tiles(int32_t head) const { return plan_.whole.order(head).tiles->kv_tiles(); }

  CarriedSum sum(const JsonNode& node) const {
    const auto f = node.fields<int32_t, 4>();
    const CarriedSum sum{head(node, f[0]), f[1], f[2], f[3]};
    within(node, sum.count, 1, kv_tiles(sum.head));
    within(node, sum.kv_tile, 0, kv_tiles(sum.head) - sum.count);
    within(node, sum.block, 0, int64_t{blocks_} - sum.count);
    return sum;
  }

  template <class End>
  End transfer(const JsonNode& node, const char* other) const {
    End end{within<int32_t>(node.member(other), 0, plan_.options.world - 1),
            node.member("message").int64(),
            space(node.member("space")),
            boxes(node.member("boxes")),
            node.member("sums").items([this](const JsonNode& item) { return sum(item); }),
            node.member("room").int32()};
    const int64_t bytes = dist::message_bytes(plan_, end.boxes, end.sums);
    within<int64_t>(node.member("bytes"), bytes, bytes);
    return end;
  }

  Step read_step(const JsonNode& node) const {
    constexpr std::array<std::string_view, 7> kSteps{"hold", "send",    "expect", "receive",
                                                     "copy", "compute", "add"};
    switch (one_of(node.member("step"), kSteps)) {
      case 0:
        return Hold{head(node.member("head")), node.member("slot").int32()};
      case 1:
        return transfer<Send>(node, "to");
      case 2:
        return Expect{within<int32_t>(node.member("from"), 0, plan_.options.world - 1),
                      node.member("message").int64(),
                      within<int64_t>(node.member("at"), -1, INT64_MAX)};
      case 3:
        return transfer<Receive>(node, "from");
      case 4:
        return Copy{space(node.member("from")), space(node.member("to")),
                    boxes(node.member("boxes")), node.member("room").int32()};
      case 5:
        return Compute{
            node.member("heads").items([this](const JsonNode& own) { return read_part_of(own); }),
            node.member("room").int32()};
      default:
        break;
    }
    const int32_t own = head(node.member("head"));
    return Add{{own, within<int32_t>(node.member("kv_tile"), 0, kv_tiles(own) - 1),
                node.member("blocks").items([](const JsonNode& item) { return item.int32(); })}};
  }

  HeadPart read_part_of(const JsonNode& node) const {
    const JsonNode carries = node.member("carries");
    const auto part = within<size_t>(node.member("part"), 0, std::ssize(parts_) - 1);
    if (plan_.whole.pass == Pass::forward && carries.size() > 0)
      throw Error(ErrorCode::invalid_plan, kOperation,
                  fmt::format("'{}' of a forward are not empty", carries.name),
                  {carries.name, fmt::to_string(carries.size()), "an empty list", "[]"});
    return {head(node.member("head")), parts_[part], carries.items([this](const JsonNode& item) {
              const auto f = item.fields<int32_t, 2>();
              within(item, f[0], -1, blocks_ - 1);
              within(item, f[1], f[0] < 0 ? -1 : 0, blocks_ - 1);
              return Carry{f[0], f[1]};
            })};
  }

  DistPlan plan_;
  std::vector<std::shared_ptr<const OrderPart>> parts_;
  int64_t most_tiles_ = 0, most_blocks_ = 0;
  int32_t blocks_ = 0;  // of the rank that is being read
};

}  // namespace

std::string to_json(const DistPlan& plan) { return Writer(plan).text(); }

DistPlan dist_plan_from_json(const std::string& text) {
  const nlohmann::json json = parse_json(text, kOperation);
  return Reader().read({json, "", kOperation});
}

}  // namespace verbatim
