#include "planner/machine/contention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>

#include "planner/machine/reference_flow_simulator.h"
#include "planner/machine/test_topologies.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;
using Ranks = std::vector<int>;

std::vector<double> AllReduces(const Topology& t, const std::vector<Ranks>& groups, double bytes) {
  std::vector<ContentionModel::Group> all;
  for (const Ranks& ranks : groups) all.push_back({Collective::ALL_REDUCE, &ranks, bytes});
  return ContentionModel(t).Collectives(all);
}

double Alone(const Topology& t, const Ranks& ranks, double bytes) {
  return AllReduces(t, {ranks}, bytes)[0];
}

// `count` groups, each of every `count`-th device.
std::vector<Ranks> Interleaved(const Topology& t, int count) {
  std::vector<Ranks> groups(count);
  for (int d = 0; d < t.num_devices(); ++d) groups[d % count].push_back(d);
  return groups;
}

// Hosts with one network card each, shared by the groups of all their devices.
TEST(ContentionTest, GroupsThatShareAnUplinkTakeAsManyTimesAsLong) {
  const Topology t = Tiers({{4, 10, 0}, {8, 1000, 0}});
  for (int count : {2, 4, 8}) {
    const std::vector<Ranks> groups = Interleaved(t, 8);
    const std::vector<double> together =
        AllReduces(t, {groups.begin(), groups.begin() + count}, 800);
    ASSERT_EQ(together.size(), count);
    for (double seconds : together) {
      EXPECT_NEAR(seconds, count * Alone(t, groups[0], 800), 1e-9 * seconds) << count;
    }
  }
}

TEST(ContentionTest, LatencyIsNotShared) {
  const Topology t = Tiers({{2, 10, 3}, {2, 1000, 0}});
  // Two ranks: two rounds of half the bytes, over 6 s.
  EXPECT_DOUBLE_EQ(Alone(t, {0, 2}, 100), 2 * (6 + 5));
  for (double seconds : AllReduces(t, {{0, 2}, {1, 3}}, 100)) {
    EXPECT_DOUBLE_EQ(seconds, 2 * (6 + 10));
  }
}

TEST(ContentionTest, GroupsOnDisjointLinksDoNotInterfere) {
  // Each host separately, with different links.
  const Topology t = Topology::Create({{"net"},
                                       {"a", "net", false, 10, 0, 1},
                                       {"a0", "a", true, 100, 0, 1},
                                       {"a1", "a", true, 100, 0, 1},
                                       {"b", "net", false, 10, 0, 1},
                                       {"b0", "b", true, 30, 0, 2},
                                       {"b1", "b", true, 30, 0, 2}})
                         .value();
  const std::vector<double> together = AllReduces(t, {{0, 1}, {2, 3}}, 1000);
  EXPECT_EQ(together[0], Alone(t, {0, 1}, 1000));
  EXPECT_EQ(together[1], Alone(t, {2, 3}, 1000));
  EXPECT_LT(together[0], together[1]);
  // A bundle carries one flow per card without contention.
  const Topology rails = Tiers({{4, 80, 0, 10}, {8, 1000, 0}});
  const std::vector<Ranks> groups = Interleaved(rails, 8);
  for (double seconds : AllReduces(rails, groups, 800)) {
    EXPECT_EQ(seconds, Alone(rails, groups[0], 800));
  }
}

// Over hosts and racks: one group alone spreads over all of a host's devices; with other groups
// there is nothing to gain on the uplinks.
TEST(ContentionTest, HierarchicalGroupsShareTheirCommonLevel) {
  // 2 racks of 2 hosts of 4 devices; pairs of devices of every host.
  const Topology t = Tiers({{2, 40, 0}, {2, 10, 0}, {4, 1000, 0}});
  const Ranks left = {0, 1, 4, 5, 8, 9, 12, 13}, right = {2, 3, 6, 7, 10, 11, 14, 15};
  const auto models = CollectiveModel::CreateConcurrent(
                          t, {{Collective::ALL_REDUCE, left}, {Collective::ALL_REDUCE, right}})
                          .value();
  const auto alone = CollectiveModel::Create(t, Collective::ALL_REDUCE, left).value();
  ASSERT_TRUE(alone.Has(CollectiveAlgorithm::kHierarchical));
  // 800 bytes. Inside, on the devices' own links: 2 x 1 x 400 / 1000. Hosts of a rack: 2 x 1 x 200
  // over 10 / 2 flows alone, 10 / 4 together. Racks: 2 x 1 x 100 over 10 / 2 (a host's card is
  // narrower than the rack's link), and 10 / 4.
  EXPECT_DOUBLE_EQ(alone.Seconds(CollectiveAlgorithm::kHierarchical, 800), 0.8 + 80 + 40);
  for (const CollectiveModel& model : models) {
    EXPECT_DOUBLE_EQ(model.Seconds(CollectiveAlgorithm::kHierarchical, 800), 0.8 + 160 + 80);
  }
  EXPECT_TRUE(models[0] == models[1]);
}

// One step of concurrent collectives matches an event simulation of all flows.
TEST(ContentionTest, ConcurrentRingsMatchAnEventSimulation) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 80; ++round) {
    const Topology t =
        Topology::Create(RandomTree(random, 1 + round % 6, 12, {1000, 0, false})).value();
    Ranks devices = AllDevices(t);
    std::shuffle(devices.begin(), devices.end(), random);
    const size_t cut = 2 + random() % 9;
    const std::vector<Ranks> groups = {{devices.begin(), devices.begin() + cut},
                                       {devices.begin() + cut, devices.end()}};
    std::vector<TestFlow> flows;
    std::vector<CollectiveGroup> asked;
    for (const Ranks& group : groups) {
      const Ranks order = TreeOrder(t, group);
      for (size_t i = 0; i < order.size(); ++i) {
        if (order.size() > 1) flows.push_back({order[i], order[(i + 1) % order.size()], 1e4});
      }
      asked.push_back({Collective::ALL_GATHER, group});
    }
    const auto models = CollectiveModel::CreateConcurrent(t, asked).value();
    const std::vector<double> ends = SimulateFlows(t, flows);
    double step = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].size() < 2) continue;
      const auto rounds = static_cast<double>(groups[g].size() - 1);
      step = std::max(step, models[g].Seconds(CollectiveAlgorithm::kRing, 1e4) / rounds);
      EXPECT_GE(models[g].Seconds(CollectiveAlgorithm::kRing, 1e4),
                CollectiveModel::Create(t, Collective::ALL_GATHER, groups[g])
                    ->Seconds(CollectiveAlgorithm::kRing, 1e4));
    }
    EXPECT_NEAR(step, *std::max_element(ends.begin(), ends.end()), 1e-9 * step) << round;
  }
}

TEST(ContentionTest, GroupsWithoutAnAlgorithmFallBackToTheRing) {
  // Four ranks and three, all behind the same two cards.
  const Topology t = Tiers({{2, 10, 0}, {4, 1000, 0}});
  const Ranks four = {0, 1, 4, 5}, three = {2, 6, 7};
  const auto models = CollectiveModel::CreateConcurrent(
                          t, {{Collective::ALL_REDUCE, four}, {Collective::ALL_REDUCE, three}})
                          .value();
  const auto alone = CollectiveModel::Create(t, Collective::ALL_REDUCE, four).value();
  EXPECT_FALSE(models[1].Has(CollectiveAlgorithm::kHalvingDoubling));
  // Across hosts two flows of the four, with a quarter, twice; the ring of the three sends one
  // more.
  const auto across = [](double flows) { return 2 * 250 * flows / 10; };
  const double inside = alone.Seconds(CollectiveAlgorithm::kHalvingDoubling, 1000) - across(2);
  EXPECT_DOUBLE_EQ(models[0].Seconds(CollectiveAlgorithm::kHalvingDoubling, 1000),
                   inside + across(3));
}

TEST(ContentionTest, CachesSetsOfGroupsSeparately) {
  const Topology t = Tiers({{2, 10, 0}, {4, 1000, 0}});
  ContentionModel times(t);
  const Ranks a = {0, 4}, b = {1, 5}, c = {2, 3};
  const auto of = [&](const Ranks& first, const Ranks& second) {
    return times.Collectives(
        {{Collective::ALL_REDUCE, &first, 1000}, {Collective::ALL_REDUCE, &second, 1000}});
  };
  const double alone = Alone(t, a, 1000);
  for (int again = 0; again < 2; ++again) {
    EXPECT_DOUBLE_EQ(of(a, b)[0], 2 * alone);
    EXPECT_DOUBLE_EQ(of(a, c)[0], alone);
    EXPECT_LT(of(a, c)[1], alone);
  }
  const Ranks nowhere = {0, 99};
  EXPECT_TRUE(std::isinf(of(nowhere, c)[0]));
  EXPECT_FALSE(CollectiveModel::CreateConcurrent(
                   t, {{Collective::ALL_REDUCE, a}, {Collective::ALL_REDUCE, {0, 1}}})
                   .ok());
}

// 8 devices of one stage send to the next stage on another host.
TEST(ContentionTest, MessagesShareTheirHostsNetworkCard) {
  const Topology t = Tiers({{2, 10, 1}, {8, 1000, 0.5}});
  const ContentionModel times(t);
  std::vector<ContentionModel::Message> messages;
  for (int d = 0; d < 8; ++d) messages.push_back({d, 8 + d, 100});
  for (double seconds : times.Messages(messages)) EXPECT_DOUBLE_EQ(seconds, 3 + 80);
  EXPECT_EQ(times.Messages({messages[0]})[0], t.TransferSeconds(0, 8, 100));
  // The opposite direction is another edge, and transfers inside the host do not interfere.
  const auto both = times.Messages({{0, 8, 100}, {9, 1, 100}, {2, 3, 100}});
  EXPECT_EQ(both[0], t.TransferSeconds(0, 8, 100));
  EXPECT_EQ(both[1], t.TransferSeconds(9, 1, 100));
  EXPECT_EQ(both[2], t.TransferSeconds(2, 3, 100));
}

TEST(ContentionTest, MessagesOfOneDeviceAreSequential) {
  const Topology t = Tiers({{2, 10, 0}, {4, 1000, 0}});
  const ContentionModel times(t);
  for (double seconds : times.Messages({{0, 4, 100}, {0, 5, 100}, {0, 6, 100}})) {
    EXPECT_DOUBLE_EQ(seconds, 10);
  }
  // 1 -> 5 runs with 0 -> 4; 1 -> 4 waits for both of its ends.
  const auto rounds = times.Messages({{0, 4, 100}, {1, 5, 100}, {1, 4, 100}});
  EXPECT_DOUBLE_EQ(rounds[0], 20);
  EXPECT_DOUBLE_EQ(rounds[1], 20);
  EXPECT_DOUBLE_EQ(rounds[2], 10);
}

TEST(ContentionTest, AShortMessageLeavesItsShareToALongOne) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    // One card is the bottleneck of all, whatever their sizes.
    const Topology t = Tiers({{2, 10, 0}, {16, 1000, 0}});
    const int count = 1 + static_cast<int>(random() % 16);
    std::vector<ContentionModel::Message> messages;
    std::vector<TestFlow> flows;
    for (int d = 0; d < count; ++d) {
      const auto bytes = static_cast<double>(random() % 4 * 1000 + 10);
      messages.push_back({d, 16 + d, bytes});
      flows.push_back({d, 16 + d, bytes});
    }
    const std::vector<double> seconds = ContentionModel(t).Messages(messages);
    const std::vector<double> ends = SimulateFlows(t, flows);
    for (int d = 0; d < count; ++d) EXPECT_NEAR(seconds[d], ends[d], 1e-6 * ends[d]);
  }
}

}  // namespace
}  // namespace espalier
