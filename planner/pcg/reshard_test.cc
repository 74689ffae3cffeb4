#include "planner/pcg/reshard.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "gtest/gtest.h"
#include "ops/schema/op_def.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;
using Data = std::vector<int64_t>;  // dense elements of one shard

void ForEach(const Region& region, const std::function<void(const Dims&)>& visit) {
  Dims at = region.start;
  for (int64_t i = 0; i < region.num_elements(); ++i) {
    visit(at);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < region.start[d] + region.size[d]) break;
      at[d] = region.start[d];
    }
  }
}

int64_t IndexIn(const Region& region, const Dims& at) {
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) {
    index = index * region.size[d] + at[d] - region.start[d];
  }
  return index;
}

// What partial sum `partial` holds of an element; the element is the sum of all.
int64_t Part(const Dims& at, int partial) {
  int64_t value = partial * 1000003 + 17;
  for (int64_t d : at) value = value * 31 + d * (partial + 1);
  return value % 1000;
}

// What a shard holds of an element.
int64_t Held(const Layout& layout, const Shard& shard, const Dims& at) {
  int64_t value = Part(at, shard.partial);
  // If overlapping boxes are summed, each has its own part.
  if (layout.overlap == Overlap::kSummed) {
    for (int64_t start : shard.region.start) value += 7 * start;
  }
  return value;
}

// The element: the sum over its distinct parts.
int64_t Total(const Layout& layout, const Dims& at) {
  std::set<std::tuple<Dims, Dims, int>> seen;
  int64_t total = 0;
  for (const Shard& shard : layout.shards) {
    bool inside = true;
    for (size_t d = 0; d < at.size(); ++d) {
      const int64_t offset = at[d] - shard.region.start[d];
      inside = inside && offset >= 0 && offset < shard.region.size[d];
    }
    const bool shared = layout.overlap != Overlap::kSummed;
    const Dims none;
    if (inside && seen.insert({shared ? none : shard.region.start,
                               shared ? none : shard.region.size, shard.partial})
                      .second) {
      total += Held(layout, shard, at);
    }
  }
  return total;
}

Data Box(const Data& data, const Region& region, const Region& box) {
  Data out;
  ForEach(box, [&](const Dims& at) { out.push_back(data[IndexIn(region, at)]); });
  return out;
}

void Put(const Data& box_data, const Region& box, const Region& region, bool accumulate,
         Data* data) {
  size_t i = 0;
  ForEach(box, [&](const Dims& at) {
    int64_t& element = (*data)[IndexIn(region, at)];
    element = (accumulate ? element : 0) + box_data[i++];
  });
}

// Runs the collective as the executor would, on flat buffers.
void RunCollective(const ReshardCollective& c, const Layout& from, const Layout& to,
                   const std::vector<Data>& source, std::vector<Data>* target) {
  const int n = static_cast<int>(c.ranks.size());
  auto region_in = [&](int r) { return from.shards[c.sources[r]].region; };
  auto region_out = [&](int r) { return to.shards[c.targets[r]].region; };
  std::vector<Data> inputs(n);
  for (int r = 0; r < n; ++r) {
    const Data& own = source[c.sources[r]];
    ASSERT_EQ(static_cast<int64_t>(own.size()), c.elements);
    if (!c.pack) {
      inputs[r] = own;
      continue;
    }
    for (int i = 0; i < n; ++i) {
      const Data box = Box(own, region_in(r), *Intersect(region_in(r), region_out(i)));
      inputs[r].insert(inputs[r].end(), box.begin(), box.end());
    }
  }
  Data sum(c.elements, 0);
  for (const Data& input : inputs) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += input[i];
  }
  const int64_t part = c.elements / n;
  for (int r = 0; r < n; ++r) {
    Data out;
    switch (c.kind) {
      case Collective::ALL_REDUCE:
        out = sum;
        break;
      case Collective::REDUCE_SCATTER:
        out.assign(sum.begin() + r * part, sum.begin() + (r + 1) * part);
        break;
      case Collective::ALL_GATHER:
        for (const Data& input : inputs) out.insert(out.end(), input.begin(), input.end());
        break;
      case Collective::ALL_TO_ALL:
        for (const Data& input : inputs) {
          out.insert(out.end(), input.begin() + r * part, input.begin() + (r + 1) * part);
        }
        break;
      default:
        FAIL();
    }
    Data& result = (*target)[c.targets[r]];
    ASSERT_EQ(out.size(), result.size());
    if (!c.unpack) {
      result = out;
      continue;
    }
    size_t at = 0;
    for (int i = 0; i < n; ++i) {
      const Region box = *Intersect(region_in(i), region_out(r));
      const Data piece(out.begin() + at, out.begin() + at + box.num_elements());
      at += piece.size();
      Put(piece, box, region_out(r), false, &result);
    }
  }
}

// Every target shard ends up with exactly the sum of its elements' partial sums.
void ExpectRight(const Layout& from, const Layout& to, std::map<int, int>* kinds) {
  absl::StatusOr<ReshardPlan> plan = PlanReshard(from, to);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<Data> source, target;
  for (const Shard& shard : from.shards) {
    source.emplace_back();
    ForEach(shard.region, [&](const Dims& at) { source.back().push_back(Held(from, shard, at)); });
  }
  for (const Shard& shard : to.shards) target.emplace_back(shard.region.num_elements(), -7);
  for (size_t t = 0; t < target.size(); ++t) {
    if (plan->alias[t] < 0) continue;
    EXPECT_EQ(from.shards[plan->alias[t]].device, to.shards[t].device);
    target[t] = source[plan->alias[t]];
  }
  for (const ReshardCollective& c : plan->collectives) {
    ++(*kinds)[c.kind];
    RunCollective(c, from, to, source, &target);
  }
  for (const ReshardPiece& piece : plan->pieces) {
    Put(Box(source[piece.source], from.shards[piece.source].region, piece.box), piece.box,
        to.shards[piece.target].region, piece.accumulate, &target[piece.target]);
  }
  for (size_t t = 0; t < target.size(); ++t) {
    Data expected;
    ForEach(to.shards[t].region, [&](const Dims& at) { expected.push_back(Total(from, at)); });
    ASSERT_EQ(target[t], expected) << ToString(from) << " -> " << ToString(to) << " shard " << t;
  }
}

// Windows of random reach, stride 1 and 2, over dimensions 1 and 2.
std::vector<OperandHalo> RandomHalos(std::mt19937* random) {
  std::vector<OperandHalo> halos;
  for (int d : {1, 2}) {
    if ((*random)() % 2 == 0) continue;
    const int64_t reach = 1 + (*random)() % 5, before = (*random)() % reach;
    const bool wide = (*random)() % 2 == 0;
    halos.push_back(
        {{.input = 0, .dim = d, .stride = wide ? 2 : 1, .before = before, .reach = reach},
         wide ? 6 : 12});
  }
  return halos;
}

Layout RandomLayout(std::mt19937* random, bool output, std::vector<OperandHalo> halos = {}) {
  const int options[] = {1, 1, 2, 2, 3, 4};
  std::vector<int> degrees(4);
  int parts = 1;
  for (int& degree : degrees) {
    degree = options[(*random)() % 6];
    if (parts * degree > 8 || (!halos.empty() && degree == 4)) degree = 1;
    parts *= degree;
  }
  std::vector<int> devices(8);
  std::iota(devices.begin(), devices.end(), 0);
  if ((*random)() % 2 == 0) std::shuffle(devices.begin(), devices.end(), *random);
  devices.resize(parts);
  // Axis 3 is in no dimension; sometimes dimension 0 follows no axis.
  const bool lead = (*random)() % 4 == 0;
  return OperandLayout({lead ? 1 : 12, 12, 12}, {lead ? kNotSplit : 0, 1, 2}, degrees, devices,
                       output, halos);
}

TEST(PlanReshardTest, ExchangesHalosAndSumsTheirGradients) {
  std::mt19937 random(6);
  std::map<int, int> kinds;
  int shared = 0, summed = 0;
  for (int round = 0; round < 3000; ++round) {
    const Layout whole = RandomLayout(&random, random() % 2 == 0);
    const Layout windowed = RandomLayout(&random, false, RandomHalos(&random));
    if (whole.dims != windowed.dims) continue;
    ExpectRight(whole, windowed, &kinds);
    shared += windowed.overlap == Overlap::kShared;
    // A windowed parameter is stored so; others read it whole.
    if (whole.partials == 1) ExpectRight(windowed, whole, &kinds);
    if (whole.partials > 1) continue;
    const Layout gradient = Dual(windowed);
    summed += gradient.overlap == Overlap::kSummed;
    ExpectRight(gradient, whole, &kinds);
    // Another window over the same tensor.
    const Layout other = RandomLayout(&random, false, RandomHalos(&random));
    if (other.dims == gradient.dims) ExpectRight(gradient, other, &kinds);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(summed, 200);
  Layout rows = OperandLayout({8}, {0}, {2}, {0, 1}, false, {{{0, 0, 1, 1, 3}, 8}});
  EXPECT_EQ(PlanReshard(rows, Dual(rows)).status().code(), absl::StatusCode::kInternal);
}

TEST(PlanReshardTest, RandomReshardsAreCorrect) {
  std::mt19937 random(5);
  std::map<int, int> kinds;
  for (int round = 0; round < 4000; ++round) {
    const Layout from = RandomLayout(&random, random() % 2 == 0);
    Layout to = RandomLayout(&random, false);
    if (to.dims != from.dims) continue;
    ExpectRight(from, to, &kinds);
    if (HasFatalFailure()) return;
  }
  // All collectives occurred.
  EXPECT_GT(kinds[Collective::ALL_REDUCE], 0);
  EXPECT_GT(kinds[Collective::ALL_GATHER], 0);
  EXPECT_GT(kinds[Collective::REDUCE_SCATTER], 0);
  EXPECT_GT(kinds[Collective::ALL_TO_ALL], 0);
}

Layout Rows(std::vector<int> devices) {
  const int n = static_cast<int>(devices.size());
  return OperandLayout({4, 8}, {0, kNotSplit}, {n}, devices, true);
}
Layout Columns(std::vector<int> devices) {
  const int n = static_cast<int>(devices.size());
  return OperandLayout({4, 8}, {kNotSplit, 0}, {n}, devices, false);
}
Layout Copies(std::vector<int> devices) {
  const int n = static_cast<int>(devices.size());
  return OperandLayout({4, 8}, {kNotSplit, kNotSplit}, {n}, devices, false);
}

TEST(PlanReshardTest, RecognizesCollectives) {
  auto only = [](const Layout& from, const Layout& to) {
    absl::StatusOr<ReshardPlan> plan = PlanReshard(from, to);
    EXPECT_TRUE(plan.ok() && plan->pieces.empty() && plan->collectives.size() == 1);
    return plan->collectives.at(0);
  };
  const Layout partial = Dual(Copies({0, 1}));
  EXPECT_EQ(only(partial, Copies({0, 1})).kind, Collective::ALL_REDUCE);
  EXPECT_EQ(only(partial, Copies({1, 0})).kind, Collective::ALL_REDUCE);
  EXPECT_EQ(only(Rows({0, 1}), Copies({0, 1})).kind, Collective::ALL_GATHER);
  EXPECT_FALSE(only(Rows({0, 1}), Copies({0, 1})).unpack);
  EXPECT_TRUE(only(Rows({1, 0}), Copies({0, 1})).unpack);  // not in the order of the ranks
  EXPECT_EQ(only(partial, Dual(Rows({0, 1}))).kind, Collective::REDUCE_SCATTER);
  EXPECT_FALSE(only(partial, Dual(Rows({0, 1}))).pack);
  EXPECT_TRUE(only(partial, Columns({0, 1})).pack);
  EXPECT_EQ(only(Rows({0, 1}), Columns({0, 1})).kind, Collective::ALL_TO_ALL);
}

// Partial sums -> shards -> whole, as ZeRO does with a parameter, on 2 x 3 devices in any order,
// split along any dimension.
TEST(PlanReshardTest, ZeroShardsAreScatteredAndGathered) {
  std::mt19937 random(8);
  std::vector<int> devices = {0, 1, 2, 3, 4, 5};
  for (const Dims& dims : {Dims{36, 64}, Dims{32, 96}, Dims{8, 6, 64}}) {
    for (int round = 0; round < 10; ++round) {
      std::vector<int> follows(dims.size(), kNotSplit);
      follows[random() % dims.size()] = 0;
      const Layout whole = OperandLayout(dims, follows, {2, 3}, devices, false);
      const Layout cut = Sharded(whole);
      ASSERT_FALSE(cut == whole);
      std::map<int, int> kinds;
      ExpectRight(Dual(whole), cut, &kinds);
      EXPECT_EQ(kinds, (std::map<int, int>{{Collective::REDUCE_SCATTER, 2}}));
      kinds.clear();
      ExpectRight(cut, whole, &kinds);
      EXPECT_EQ(kinds, (std::map<int, int>{{Collective::ALL_GATHER, 2}}));
      // A replica takes its own shard without communication.
      const absl::StatusOr<ReshardPlan> taken = PlanReshard(whole, cut);
      ASSERT_TRUE(taken.ok()) << taken.status();
      EXPECT_EQ(ElementsMoved(*taken, whole, cut), 0);
      ExpectRight(whole, cut, &kinds);
      std::shuffle(devices.begin(), devices.end(), random);
    }
  }
  const Layout rows = Sharded(OperandLayout({64, 64}, {kNotSplit, kNotSplit}, {2}, {1, 0}, false));
  const absl::StatusOr<ReshardPlan> gather =
      PlanReshard(rows, OperandLayout({64, 64}, {kNotSplit, kNotSplit}, {2}, {1, 0}, false));
  ASSERT_TRUE(gather.ok() && gather->collectives.size() == 1);
  EXPECT_FALSE(gather->collectives[0].unpack);
}

TEST(PlanReshardTest, ReplicaOnTheSameDeviceCostsNothing) {
  absl::StatusOr<ReshardPlan> plan = PlanReshard(Copies({0, 1, 2}), Copies({2, 1}));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->alias, (std::vector<int>{2, 1}));
  EXPECT_TRUE(plan->pieces.empty() && plan->collectives.empty());
}

TEST(PlanReshardTest, RejectsPartialSumsAsTarget) {
  EXPECT_EQ(PlanReshard(Rows({0, 1}), Dual(Copies({0, 1}))).status().code(),
            absl::StatusCode::kInternal);
}

TEST(ElementsMovedTest, CountsElementsThatCrossDevices) {
  auto moved = [](const Layout& from, const Layout& to) {
    return ElementsMoved(*PlanReshard(from, to), from, to);
  };
  EXPECT_EQ(moved(Copies({0}), Copies({0, 1, 2})), 64);
  EXPECT_EQ(moved(Rows({0, 1}), Copies({0, 1})), 32);          // each half to the other
  EXPECT_EQ(moved(Rows({0, 1}), Columns({0, 1})), 16);         // a quarter each way
  EXPECT_EQ(moved(Dual(Copies({0, 1})), Copies({0, 1})), 64);  // ring: 2 (n - 1) / n each
  EXPECT_EQ(moved(Dual(Copies({0, 1})), Columns({0, 1})), 32);
}

}  // namespace
}  // namespace espalier
