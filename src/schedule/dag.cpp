// The scheduling graph of DASH section 3.1.
#include <algorithm>
#include <map>
#include <tuple>

#include "plan/walk.h"
#include "schedule/simulate.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr int64_t kMaxNodes = 1 << 20;
constexpr int32_t kSource = 0, kSink = 1;

}  // namespace

Dag make_dag(const Plan& plan, const Machine& machine) {
  int64_t nodes = 2;
  for (const int32_t order : plan.order_of_head) nodes += 2 * plan.orders[order]->visits();
  if (nodes > kMaxNodes)
    throw Error(ErrorCode::unsupported, "schedule.make_dag", "the plan is too large for a graph",
                {"plan", std::to_string(nodes) + " nodes", "at most 2^20 nodes", ""});
  const Costs costs(plan, machine);
  Dag dag{.nodes = 2, .edges = {}};
  // (head, tile, q_head, addend) -> the nodes between which a reduction lies.
  using Place = std::tuple<int32_t, int32_t, int32_t, int32_t>;
  std::map<Place, std::pair<int32_t, int32_t>> rows, tiles;
  for (const auto& tasks : simulate_run(plan, machine, nullptr).tasks) {
    int32_t last = kSource, start = kSource;
    const auto edge_to_new = [&](double weight) {
      dag.edges.push_back({last, dag.nodes, weight});
      return last = dag.nodes++;
    };
    for (Walker walker(plan, tasks); !walker.done(); walker.advance()) {
      const int32_t head = walker.placed().head;
      const Chain& chain = walker.chain();
      if (walker.at_chain_start()) {
        start = edge_to_new(0);
      } else if (walker.at_chain_end()) {
        const int32_t before = chain.continues ? start : last;
        const int32_t after =
            edge_to_new(chain.addends > 1 ? machine.chain_share : machine.chain_end);
        tiles[{head, chain.tile, chain.q_head, chain.addend}] = {before, after};
      } else {
        const int32_t computed = edge_to_new(costs.compute(walker.run()));
        if (plan.pass == Pass::forward) continue;
        const int32_t reduced = edge_to_new(costs.reduce());
        rows[{head, walker.tile(), walker.run().q_head, walker.addend()}] = {computed, reduced};
      }
    }
    dag.edges.push_back({last, kSink, 0});
  }
  for (const auto& sums : {rows, tiles}) {
    for (const auto& [place, between] : sums) {
      const auto& [head, tile, q_head, addend] = place;
      const auto before = sums.find({head, tile, q_head, addend - 1});
      if (before != sums.end()) dag.edges.push_back({before->second.second, between.first, 0});
    }
  }
  return dag;
}

double Dag::critical_path() const {
  std::vector<std::vector<int32_t>> out(nodes);
  std::vector<int32_t> missing(nodes);
  for (size_t e = 0; e < edges.size(); ++e) {
    out[edges[e].from].push_back(static_cast<int32_t>(e));
    ++missing[edges[e].to];
  }
  std::vector<double> longest(nodes);
  std::vector<int32_t> ready;
  for (int32_t n = 0; n < nodes; ++n)
    if (missing[n] == 0) ready.push_back(n);
  int32_t done = 0;
  while (!ready.empty()) {
    const size_t node = ready.back();
    ready.pop_back();
    ++done;
    for (const int32_t e : out[node]) {
      const Edge& edge = edges[e];
      auto& end = longest[edge.to];
      end = std::max(end, longest[node] + edge.weight);
      if (--missing[edge.to] == 0) ready.push_back(edge.to);
    }
  }
  if (done != nodes)
    throw Error(ErrorCode::invalid_plan, "schedule.critical_path", "the graph has a cycle");
  return longest[kSink];
}

}  // namespace verbatim
