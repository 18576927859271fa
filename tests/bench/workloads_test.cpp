#include "bench/workloads.h"

#include <gtest/gtest.h>

#include <set>

#include "verbatim/mask.h"

namespace verbatim::bench {
namespace {

TEST(Workloads, HaveUniqueNamesAndMasksOfTheirLength) {
  EXPECT_EQ(set_names(), (std::vector<std::string>{"dense", "gqa", "masks", "mqa"}));
  for (const std::string& set : set_names()) {
    std::set<std::string> names;
    for (const Workload& one : workloads(set)) {
      EXPECT_TRUE(names.insert(one.name).second) << one.name;
      const nlohmann::json spec{{"name", one.mask}, {"params", one.params}};
      const Mask mask = masks::make(spec.dump(), one.seqlen, one.seqlen, one.kv_heads);
      EXPECT_EQ(mask.q_len(), one.seqlen) << one.name;
      EXPECT_EQ(one.q_heads % one.kv_heads, 0) << one.name;
    }
  }
}

TEST(Workloads, AreEveryCombinationTheLastListFastest) {
  const std::vector<Workload> dense = workloads("dense");
  ASSERT_EQ(dense.size(), 24u);
  EXPECT_EQ(dense[7].name, "hd128 full 1024");  // as python/tests/test_bench.py has it
  EXPECT_EQ(dense[7].batch, 16);
  EXPECT_EQ(dense[7].q_heads, 16);
  EXPECT_EQ(dense[7].kv_heads, 16);
  for (const Workload& one : dense) EXPECT_EQ(one.batch * one.seqlen, 16384) << one.name;
  const std::vector<Workload> masks = workloads("masks");
  ASSERT_EQ(masks.size(), 12u);
  EXPECT_EQ(masks[10].mask, "prefix_lm_document");
  EXPECT_EQ(masks[10].params["prefix"], nlohmann::ordered_json({195}));
  EXPECT_EQ(workloads("mqa").back().name, "16:1 full 8192");
}

}  // namespace
}  // namespace verbatim::bench
