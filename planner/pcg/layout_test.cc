#include "planner/pcg/layout.h"

#include "gtest/gtest.h"
#include "ops/schema/op_def.h"
#include "planner/pcg/parallel_op.h"

namespace espalier {
namespace {

TEST(OperandLayoutTest, LinearSplitOverSamplesAndOutputs) {
  // Axes: sample x2, out x2, in x1 on devices 3, 1, 0, 2.
  const std::vector<int> degrees = {2, 2, 1}, devices = {3, 1, 0, 2};
  const Layout x = OperandLayout({8, 6}, {0, 2}, degrees, devices, false);
  EXPECT_EQ(x.replicas, 2);
  EXPECT_EQ(x.partials, 1);
  EXPECT_EQ(x.shards[0].region, (Region{{0, 0}, {4, 6}}));
  EXPECT_EQ(x.shards[1].region, (Region{{0, 0}, {4, 6}}));
  EXPECT_EQ(x.shards[1].replica, 1);
  EXPECT_EQ(x.shards[2].region, (Region{{4, 0}, {4, 6}}));
  EXPECT_EQ(x.shards[2].device, 0);
  const Layout y = OperandLayout({8, 10}, {0, 1}, degrees, devices, true);
  EXPECT_EQ(y.partials, 1);
  EXPECT_EQ(y.shards[3].region, (Region{{4, 5}, {4, 5}}));
}

TEST(OperandLayoutTest, SplitReductionLeavesPartialSums) {
  const Layout y = OperandLayout({8, 10}, {0, 1}, {1, 1, 2}, {0, 1}, true);
  EXPECT_EQ(y.partials, 2);
  EXPECT_EQ(y.replicas, 1);
  EXPECT_EQ(y.shards[0].region, y.shards[1].region);
  EXPECT_EQ(y.shards[1].partial, 1);
}

TEST(OperandLayoutTest, DimensionsFollowAnAxisOfUnits) {
  // 64 columns that are 4 heads.
  const Layout q = OperandLayout({2, 64}, {kNotSplit, 0}, {4}, {0, 1, 2, 3}, false);
  EXPECT_EQ(q.shards[2].region, (Region{{0, 32}, {2, 16}}));
}

TEST(DualTest, SwapsReplicasAndPartialSumsAndIsItsOwnInverse) {
  LayoutTable table;
  const int id = table.Intern(OperandLayout({8}, {0}, {2, 3}, {0, 1, 2, 3, 4, 5}, false));
  const int dual = table.Dual(id);
  EXPECT_NE(dual, id);
  EXPECT_EQ(table.Get(dual).partials, 3);
  EXPECT_EQ(table.Get(dual).replicas, 1);
  EXPECT_EQ(table.Dual(dual), id);
  const int plain = table.Intern(OperandLayout({8}, {0}, {2}, {0, 1}, false));
  EXPECT_EQ(table.Dual(plain), plain);
}

// Shards partition the tensor; each device's shard lies in its former box.
void ExpectPartition(const Layout& whole, const Layout& cut) {
  ASSERT_EQ(cut.shards.size(), whole.shards.size());
  EXPECT_EQ(cut.replicas, 1);
  int64_t covered = 0;
  for (size_t i = 0; i < cut.shards.size(); ++i) {
    const Region& piece = cut.shards[i].region;
    EXPECT_EQ(cut.shards[i].device, whole.shards[i].device);
    EXPECT_EQ(Intersect(piece, whole.shards[i].region), piece);
    covered += piece.num_elements();
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(Intersect(piece, cut.shards[j].region));
  }
  EXPECT_EQ(covered, NumElements(whole.dims));
}

TEST(ShardedTest, SplitsEachBoxAmongItsReplicas) {
  // 3 replicas of each of 2 column blocks; the first dimension is not divisible by 3.
  for (const Dims& dims : {Dims{1200, 8}, Dims{1000, 24}, Dims{2, 50, 24}}) {
    std::vector<int> follows(dims.size(), kNotSplit);
    follows.back() = 1;
    const Layout whole = OperandLayout(dims, follows, {3, 2}, {5, 0, 3, 1, 4, 2}, false);
    const Layout cut = Sharded(whole);
    ASSERT_FALSE(cut == whole);
    ExpectPartition(whole, cut);
    LayoutTable table;
    const int id = table.Intern(whole);
    EXPECT_EQ(table.Get(table.Sharded(id)), cut);
    EXPECT_EQ(table.Sharded(table.Sharded(id)), table.Sharded(id));
  }
}

TEST(ShardedTest, ShardsFollowTheOrderOfTheirDevices) {
  const Layout cut =
      Sharded(OperandLayout({64, 32}, {kNotSplit, kNotSplit}, {4}, {2, 0, 3, 1}, false));
  for (const Shard& shard : cut.shards) {
    EXPECT_EQ(shard.region, (Region{{16 * shard.device, 0}, {16, 32}}));
  }
}

TEST(ShardedTest, SmallOrIndivisibleTensorsStayWhole) {
  auto copies = [](const Dims& dims, int n) {
    std::vector<int> devices;
    for (int i = 0; i < n; ++i) devices.push_back(i);
    return OperandLayout(dims, std::vector<int>(dims.size(), kNotSplit), {n}, devices, false);
  };
  for (const Layout& layout :
       {copies({1023}, 3), copies({1111, 7}, 4), copies({4096}, 1), Dual(copies({4096}, 2)),
        OperandLayout({4096}, {0}, {2}, {0, 1}, false),
        OperandLayout({64, 64}, {0, kNotSplit}, {2, 2}, {0, 1, 2, 3}, false,
                      {{{0, 0, 1, 1, 3}, 64}})}) {
    EXPECT_EQ(Sharded(layout), layout) << ToString(layout);
  }
  EXPECT_FALSE(Sharded(copies({1024}, 2)) == copies({1024}, 2));
}

TEST(LayoutTableTest, EqualLayoutsHaveOneId) {
  LayoutTable table;
  const int a = table.Intern(OperandLayout({8, 4}, {0, kNotSplit}, {2}, {0, 1}, false));
  EXPECT_EQ(table.Intern(OperandLayout({8, 4}, {1, kNotSplit}, {1, 2}, {0, 1}, false)), a);
  EXPECT_NE(table.Intern(OperandLayout({8, 4}, {0, kNotSplit}, {2}, {1, 0}, false)), a);
  EXPECT_NE(table.Intern(OperandLayout({8, 4}, {kNotSplit, 0}, {2}, {0, 1}, false)), a);
}

// Layouts of a [24, 24] tensor as a producer leaves it (partial sums) or a consumer needs it
// (replicas).
std::vector<Layout> SomeLayouts(bool output) {
  std::vector<Layout> layouts;
  for (int rows : {1, 2, 3, 4}) {
    for (int columns : {1, 2, 3}) {
      for (int other : {1, 2}) {
        std::vector<int> devices;
        for (int i = 0; i < rows * columns * other; ++i) devices.push_back(i);
        layouts.push_back(OperandLayout({24, 24}, {0, 1}, {rows, columns, other}, devices, output));
      }
    }
  }
  return layouts;
}

TEST(ParallelOpTest, GradientEdgeCarriesTheDualsInReverse) {
  for (const Layout& produced : SomeLayouts(true)) {
    for (const Layout& required : SomeLayouts(false)) {
      std::vector<ParallelOp> forward = ParallelOpsBetween(produced, required);
      std::vector<ParallelOp> expected;
      for (auto it = forward.rbegin(); it != forward.rend(); ++it) expected.push_back(Dual(*it));
      const std::vector<ParallelOp> backward = ParallelOpsBetween(Dual(required), Dual(produced));
      ASSERT_EQ(backward.size(), expected.size())
          << ToString(produced) << " -> " << ToString(required);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(backward[i].SameWork(expected[i]))
            << ToString(produced) << " -> " << ToString(required) << ", operator " << i;
      }
    }
  }
}

TEST(ParallelOpTest, NamesTheOperators) {
  using Kind = v1::ParallelOperator;
  auto rows = OperandLayout({8, 8}, {0, kNotSplit}, {2}, {0, 1}, true);
  auto columns = OperandLayout({8, 8}, {kNotSplit, 0}, {2}, {0, 1}, false);
  auto whole = OperandLayout({8, 8}, {kNotSplit, kNotSplit}, {}, {0}, false);
  auto copies = OperandLayout({8, 8}, {kNotSplit, kNotSplit}, {2}, {0, 1}, false);
  auto sums = OperandLayout({8, 8}, {kNotSplit, kNotSplit}, {2}, {0, 1}, true);
  auto moved = OperandLayout({8, 8}, {kNotSplit, 0}, {2}, {1, 0}, false);
  auto kinds = [](const Layout& a, const Layout& b) {
    std::vector<Kind::Kind> out;
    for (const ParallelOp& op : ParallelOpsBetween(a, b)) out.push_back(op.kind);
    return out;
  };
  EXPECT_EQ(kinds(rows, columns), (std::vector<Kind::Kind>{Kind::ALL_TO_ALL}));
  EXPECT_EQ(kinds(rows, whole), (std::vector<Kind::Kind>{Kind::COMBINE}));
  EXPECT_EQ(kinds(whole, columns), (std::vector<Kind::Kind>{Kind::PARTITION}));
  EXPECT_EQ(kinds(sums, copies), (std::vector<Kind::Kind>{Kind::REDUCE, Kind::REPLICATE}));
  EXPECT_EQ(kinds(columns, moved), (std::vector<Kind::Kind>{Kind::MOVE}));
  EXPECT_TRUE(kinds(columns, columns).empty());
  auto windows = OperandLayout({8, 8}, {0, kNotSplit}, {2}, {0, 1}, false, {{{0, 0, 1, 1, 3}, 8}});
  EXPECT_EQ(kinds(rows, windows), (std::vector<Kind::Kind>{Kind::EXCHANGE_HALO}));
}

}  // namespace
}  // namespace espalier
