#include "planner/machine/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "planner/machine/rates.h"
#include "planner/machine/reference_flow_simulator.h"
#include "planner/machine/test_topologies.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;
using Algorithm = CollectiveAlgorithm;

constexpr Collective::Kind kKinds[] = {Collective::ALL_REDUCE, Collective::ALL_GATHER,
                                       Collective::REDUCE_SCATTER, Collective::ALL_TO_ALL,
                                       Collective::BROADCAST};
constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kTree,
                                     Algorithm::kHalvingDoubling, Algorithm::kHierarchical};

CollectiveModel Model(const Topology& t, Collective::Kind kind, const std::vector<int>& ranks) {
  return CollectiveModel::Create(t, kind, ranks).value();
}

CollectiveModel Model(const Topology& t, Collective::Kind kind) {
  return Model(t, kind, AllDevices(t));
}

// Returns the seconds until all flows (device to device, equal bytes) have arrived.
double EventSeconds(const Topology& t, const std::vector<std::pair<int, int>>& flows,
                    double bytes) {
  std::vector<TestFlow> all;
  for (auto [from, to] : flows) all.push_back({from, to, bytes});
  const std::vector<double> ends = SimulateFlows(t, all);
  return ends.empty() ? 0 : *std::max_element(ends.begin(), ends.end());
}

TEST(CollectivesTest, RingOnAUniformMachineIsRatesToTheBit) {
  v1::Link link;
  link.set_bandwidth(1.7e9);
  link.set_latency_seconds(3.3e-5);
  const Topology t = Topology::Uniform(33, link).value();
  for (Collective::Kind kind : kKinds) {
    for (int n : {1, 2, 3, 7, 8, 16, 33}) {
      std::vector<int> ranks = AllDevices(t);
      ranks.resize(n);
      std::reverse(ranks.begin(), ranks.end());
      for (double bytes : {0.0, 1.0, 1e3, 123456.0, 7e8, 1e12}) {
        EXPECT_EQ(Model(t, kind, ranks).Seconds(Algorithm::kRing, bytes),
                  CollectiveSeconds(link, kind, n, bytes))
            << kind << " " << n << " " << bytes;
      }
    }
  }
}

TEST(CollectivesTest, KnownTimesOnAUniformMachine) {
  v1::Link link;
  link.set_bandwidth(10);
  link.set_latency_seconds(1);
  const Topology t = Topology::Uniform(8, link).value();
  // 8 ranks, 80 bytes: 8 s for all of it, 1 s for an eighth, 1 s latency.
  struct Case {
    Collective::Kind kind;
    double tree, halving_doubling;
  };
  for (const Case& c :
       std::vector<Case>{{Collective::ALL_REDUCE, 6 * 9, 6 + 2 * 7},
                         {Collective::ALL_GATHER, 3 + (1 + 2 + 4) * 8 + 3 * (1 + 64), 3 + 7 * 8},
                         {Collective::REDUCE_SCATTER, 3 * 9 + 3 + 7, 3 + 7},
                         {Collective::ALL_TO_ALL, 3 * 5, 3 * 5},
                         {Collective::BROADCAST, 3 * 9, 6 + 2 * 7}}) {
    const CollectiveModel model = Model(t, c.kind);
    EXPECT_DOUBLE_EQ(model.Seconds(Algorithm::kTree, 80), c.tree) << c.kind;
    EXPECT_DOUBLE_EQ(model.Seconds(Algorithm::kHalvingDoubling, 80), c.halving_doubling) << c.kind;
    EXPECT_FALSE(model.Has(Algorithm::kHierarchical));
  }
}

TEST(CollectivesTest, KnownTimesOfThreeRanksWhereTheLastBlocksAreFewer) {
  v1::Link link;
  link.set_bandwidth(10);
  link.set_latency_seconds(1);
  const Topology t = Topology::Uniform(3, link).value();
  // 30 bytes: 3 s for all of it, 1 s for a third. Two steps, with one block each.
  EXPECT_DOUBLE_EQ(Model(t, Collective::ALL_GATHER).Seconds(Algorithm::kTree, 30),
                   2 * (1 + 3) + 2 * (1 + 9));
  EXPECT_DOUBLE_EQ(Model(t, Collective::REDUCE_SCATTER).Seconds(Algorithm::kTree, 30),
                   2 * (1 + 3) + 2 * (1 + 1));
  EXPECT_DOUBLE_EQ(Model(t, Collective::ALL_TO_ALL).Seconds(Algorithm::kTree, 30), 2 * (1 + 1));
}

TEST(CollectivesTest, AllToAllOverABundleTakesOneCardPerRank) {
  // 2 hosts of 2. Of 3 rounds 2 cross: a rank's card passes 2 quarters of 40 bytes at 2 bytes/s
  // where the bundle would pass the host's 4 quarters at 100 bytes/s.
  const Topology t = Tiers({{2, 100, 0, 2}, {2, 1000, 0}});
  EXPECT_DOUBLE_EQ(Model(t, Collective::ALL_TO_ALL).Seconds(Algorithm::kRing, 40), 10);
  // The most distant pair determines latency.
  const Topology wide = Topology::Create({{"n"},
                                          {"a", "n", true, 1e9, 0, 2},
                                          {"b", "n", true, 1e9, 0, 5},
                                          {"c", "n", true, 1e9, 0, 7},
                                          {"d", "n", true, 1e9, 0, 1}})
                            .value();
  EXPECT_DOUBLE_EQ(Model(wide, Collective::ALL_TO_ALL).Seconds(Algorithm::kRing, 0), 3 * 12);
}

TEST(CollectivesTest, KnownTimesOnTwoLevels) {
  // 3 hosts of 4: inside 100 bytes/s and 1 s between two, across hosts 10 bytes/s and 6 s.
  const Topology t = Tiers({{3, 10, 2.5}, {4, 100, 0.5}});
  struct Case {
    Collective::Kind kind;
    double ring, hierarchical;
  };
  const double bytes = 1200;
  for (const Case& c : std::vector<Case>{
           // Rails: 4 flows of a twelfth share 10 bytes/s.
           {Collective::ALL_REDUCE, 22 * (6 + 10), 6 * (1 + 3) + 4 * (6 + 40)},
           {Collective::ALL_GATHER, 11 * (6 + 120), 2 * (6 + 480) + 3 * (1 + 36)},
           {Collective::REDUCE_SCATTER, 11 * (6 + 10), 3 * (1 + 3) + 2 * (6 + 40)},
           // A host sends 4 x 8 twelfths to the others.
           {Collective::ALL_TO_ALL, 11 * 6 + 4 * 8 * 10, 3 * (1 + 3) + 2 * 6 + 4 * 2 * 40},
           // Two scatter steps (half of it, then a quarter); rails; all-gather.
           {Collective::BROADCAST, 9 * (1 + 12) + 2 * (6 + 120),
            (1 + 3) + (1 + 6) + 2 * (6 + 120) + 3 * (1 + 3)}}) {
    const CollectiveModel model = Model(t, c.kind);
    EXPECT_DOUBLE_EQ(model.Seconds(Algorithm::kRing, bytes), c.ring) << c.kind;
    EXPECT_DOUBLE_EQ(model.Seconds(Algorithm::kHierarchical, bytes), c.hierarchical) << c.kind;
    EXPECT_FALSE(model.Has(Algorithm::kHalvingDoubling));
  }
}

TEST(CollectivesTest, RingCrossesEachLinkOnceInEachDirection) {
  const Topology t = Tiers({{3, 10, 1}, {4, 20, 1}, {5, 50, 1}});
  std::mt19937_64 random(1);
  for (int n : {2, 7, 23, 60}) {
    std::vector<int> ranks = AllDevices(t);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(n);
    const std::vector<int> order = TreeOrder(t, ranks);
    EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), ranks.begin(), ranks.end()));
    std::vector<int> crossings(t.num_edges(), 0);
    for (int p = 0; p < n; ++p) {
      t.VisitPath(order[p], order[(p + 1) % n], [&](int edge) { ++crossings[edge]; });
    }
    for (int v = 1; v < t.num_nodes(); ++v) {
      const auto below = std::count_if(ranks.begin(), ranks.end(), [&](int r) {
        return v <= t.DeviceNode(r) && t.DeviceNode(r) < t.SubtreeEnd(v);
      });
      const int expected = below > 0 && below < n ? 1 : 0;
      EXPECT_EQ(crossings[Topology::UpEdge(v)], expected) << t.NodeName(v);
      EXPECT_EQ(crossings[Topology::DownEdge(v)], expected) << t.NodeName(v);
    }
  }
}

TEST(CollectivesTest, HierarchicalBeatsRingOverSlowUplinks) {
  // 1,024 devices in hosts of 8 whose uplinks are slower than one device's link.
  const Topology t = Tiers({{128, 50e9, 5e-6}, {8, 450e9, 1e-6}});
  const CollectiveModel model = Model(t, Collective::ALL_REDUCE);
  for (double bytes : {1e3, 1e6, 1e8, 1e9}) {
    EXPECT_LT(model.Seconds(Algorithm::kHierarchical, bytes),
              model.Seconds(Algorithm::kRing, bytes))
        << bytes;
  }
}

TEST(CollectivesTest, HierarchicalUsesAllCardsOfABundleWhereARingUsesOne) {
  const Topology t = Tiers({{16, 400e9, 5e-6, 50e9}, {8, 450e9, 1e-6}});
  const CollectiveModel model = Model(t, Collective::ALL_REDUCE);
  EXPECT_LT(4 * model.Seconds(Algorithm::kHierarchical, 1e10),
            model.Seconds(Algorithm::kRing, 1e10));
}

TEST(CollectivesTest, ThreeLevelsAreCheaperThanTwoForSmallMessages) {
  const Topology two = Tiers({{64, 1e9, 1e-6}, {8, 1e9, 1e-6}});
  const Topology three = Tiers({{8, 1e9, 1e-6}, {8, 1e9, 0}, {8, 1e9, 1e-6}});
  EXPECT_LT(Model(three, Collective::ALL_REDUCE).Seconds(Algorithm::kHierarchical, 8),
            Model(two, Collective::ALL_REDUCE).Seconds(Algorithm::kHierarchical, 8) / 3);
}

TEST(CollectivesTest, TreeBeatsRingForSmallMessagesAndRingBeatsTreeForLarge) {
  const Topology t = Tiers({{8, 50e9, 5e-6}, {8, 450e9, 1e-6}});
  for (Collective::Kind kind : kKinds) {
    const CollectiveModel model = Model(t, kind);
    EXPECT_LT(model.Seconds(Algorithm::kTree, 8), model.Seconds(Algorithm::kRing, 8)) << kind;
    if (kind == Collective::BROADCAST) continue;  // the ring sends all of it 63 times
    EXPECT_GT(model.Seconds(Algorithm::kTree, 1e10), model.Seconds(Algorithm::kRing, 1e10)) << kind;
  }
  const Topology seven = Tiers({{7, 50e9, 5e-6}, {8, 450e9, 1e-6}});
  EXPECT_EQ(Model(seven, Collective::ALL_REDUCE).Best(8).algorithm, Algorithm::kTree);
}

TEST(CollectivesTest, BestIsTheLeastOfAll) {
  const Topology t = Tiers({{4, 30, 5}, {4, 400, 1}});
  for (Collective::Kind kind : kKinds) {
    for (double bytes : {0.0, 10.0, 1e3, 1e6}) {
      const CollectiveModel model = Model(t, kind);
      const CollectiveTime best = model.Best(bytes);
      EXPECT_EQ(best.seconds, model.Seconds(best.algorithm, bytes));
      for (Algorithm a : kAlgorithms) {
        ASSERT_TRUE(model.Has(a));
        EXPECT_LE(best.seconds, model.Seconds(a, bytes));
        EXPECT_EQ(CollectiveSeconds(t, kind, AllDevices(t), a, bytes).value(),
                  model.Seconds(a, bytes));
      }
      const CollectiveTime once = BestCollective(t, kind, AllDevices(t), bytes).value();
      EXPECT_EQ(once.seconds, best.seconds);
      EXPECT_EQ(once.algorithm, best.algorithm);
    }
  }
}

TEST(CollectivesTest, OneRankCostsNothing) {
  const Topology t = Tiers({{2, 1, 1}});
  for (Collective::Kind kind : kKinds) {
    const CollectiveTime best = Model(t, kind, {1}).Best(1e9);
    EXPECT_EQ(best.seconds, 0);
    EXPECT_EQ(best.algorithm, Algorithm::kRing);
  }
}

// Bytes that must leave (or enter) a set of `inside` of n ranks, whatever the algorithm.
double MustCross(Collective::Kind kind, double bytes, int n, int inside) {
  const int outside = n - inside;
  switch (kind) {
    case Collective::ALL_GATHER:
      return bytes * std::max(inside, outside);
    case Collective::REDUCE_SCATTER:
      return bytes / n * std::max(inside, outside);
    case Collective::ALL_TO_ALL:
      return bytes / n * inside * outside;
    default:
      return bytes;
  }
}

TEST(CollectivesTest, NoAlgorithmBeatsTheNarrowestCut) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    const Topology t =
        Topology::Create(RandomTree(random, 1 + round % 7, 16, {1000, 1e-1, false})).value();
    std::vector<int> ranks = AllDevices(t);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(round % 3 == 0 ? 16 : round % 3 == 1 ? 8 : 2 + random() % 14);
    const int n = static_cast<int>(ranks.size());
    for (Collective::Kind kind : kKinds) {
      double least = 0;
      for (int v = 1; v < t.num_nodes(); ++v) {
        const auto inside = std::count_if(ranks.begin(), ranks.end(), [&](int r) {
          return v <= t.DeviceNode(r) && t.DeviceNode(r) < t.SubtreeEnd(v);
        });
        if (inside == 0 || inside == n) continue;
        least = std::max(least, MustCross(kind, 5000, n, static_cast<int>(inside)) /
                                    t.EdgeBandwidth(Topology::UpEdge(v)));
      }
      const CollectiveModel model = Model(t, kind, ranks);
      for (Algorithm a : kAlgorithms) {
        if (model.Has(a)) {
          EXPECT_GE(model.Seconds(a, 5000), least * (1 - 1e-12)) << Name(a) << " " << kind;
        }
      }
    }
  }
}

TEST(CollectivesTest, MoreBandwidthNeverSlowsAnything) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 60; ++round) {
    std::vector<TopologyNode> nodes = RandomTree(random, 1 + round % 6, 16, {1000, 1e-1, false});
    const Topology before = Topology::Create(nodes).value();
    nodes[1 + random() % (nodes.size() - 1)].bandwidth *= 3;
    const Topology after = Topology::Create(nodes).value();
    for (Collective::Kind kind : kKinds) {
      const CollectiveModel a = Model(before, kind), b = Model(after, kind);
      for (Algorithm algorithm : kAlgorithms) {
        for (double bytes : {1.0, 100.0, 1e5}) {
          if (a.Has(algorithm)) {
            EXPECT_LE(b.Seconds(algorithm, bytes), a.Seconds(algorithm, bytes));
          }
        }
      }
    }
  }
}

TEST(CollectivesTest, ContentionIsThatOfAnEventSimulation) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 80; ++round) {
    const Topology t =
        Topology::Create(RandomTree(random, 1 + round % 6, 10, {1000, 0, false})).value();
    std::vector<int> ranks = AllDevices(t);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(round % 2 == 0 ? 8 : 2 + random() % 8);
    const int n = static_cast<int>(ranks.size());
    const std::vector<int> order = TreeOrder(t, ranks);
    const double bytes = 1e4;
    auto expect = [&](Collective::Kind kind, Algorithm algorithm, double seconds) {
      EXPECT_NEAR(Model(t, kind, ranks).Seconds(algorithm, bytes), seconds, 1e-9 * seconds)
          << kind << " " << Name(algorithm) << " round " << round;
    };

    std::vector<std::pair<int, int>> ring, pairs;
    for (int p = 0; p < n; ++p) {
      ring.emplace_back(order[p], order[(p + 1) % n]);
      for (int q = 0; q < n; ++q) {
        if (p != q) pairs.emplace_back(order[p], order[q]);
      }
    }
    expect(Collective::ALL_GATHER, Algorithm::kRing, (n - 1) * EventSeconds(t, ring, bytes));
    expect(Collective::ALL_TO_ALL, Algorithm::kRing, EventSeconds(t, pairs, bytes / n));

    double reduce = 0, exchange = 0;
    for (int d = 1; d < n; d *= 2) {
      std::vector<std::pair<int, int>> up, both;
      for (int p = 0; p < n; ++p) {
        if (p % (2 * d) == 0 && p + d < n) up.emplace_back(order[p + d], order[p]);
        if ((p ^ d) < n) both.emplace_back(order[p], order[p ^ d]);
      }
      reduce += EventSeconds(t, up, bytes);
      exchange += EventSeconds(t, both, bytes / (2 * d));
    }
    expect(Collective::ALL_REDUCE, Algorithm::kTree, 2 * reduce);
    if (n == 8) expect(Collective::ALL_REDUCE, Algorithm::kHalvingDoubling, 2 * exchange);
  }
}

TEST(CollectivesTest, AllToAllOnEachLevelCountsItsPairs) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 20; ++round) {
    // Hosts of 4 whose devices are on one or two switches: not a level, as the groups are unequal.
    std::vector<TopologyNode> nodes = {{"net"}};
    auto rate = [&] { return static_cast<double>(1 + random() % 100); };
    for (int h = 0; h < 3; ++h) {
      const std::string host = absl::StrCat("h", h), inner = absl::StrCat(host, ".s");
      nodes.push_back({host, "net", false, rate()});
      nodes.push_back({inner, host, false, rate()});
      for (int d = 0; d < 4; ++d) {
        nodes.push_back({absl::StrCat(host, ".", d), d < 3 ? inner : host, true, rate()});
      }
    }
    const Topology t = Topology::Create(nodes).value();
    const std::vector<int> order = TreeOrder(t, AllDevices(t));
    std::vector<std::pair<int, int>> inside, across;
    for (int p = 0; p < 12; ++p) {
      for (int q = 0; q < 12; ++q) {
        if (p == q) continue;
        if (p / 4 == q / 4) inside.emplace_back(order[p], order[q]);
        if (p % 4 == q % 4) across.emplace_back(order[p], order[q]);
      }
    }
    const double expected = EventSeconds(t, inside, 1200 / 4) + EventSeconds(t, across, 1200 / 3);
    EXPECT_NEAR(Model(t, Collective::ALL_TO_ALL).Seconds(Algorithm::kHierarchical, 1200), expected,
                1e-9 * expected);
  }
}

TEST(CollectivesTest, BroadcastStartsAtItsRootAndNoMatterWhereItLies) {
  // From a device in the middle of a host, each uplink is still crossed once.
  const Topology t = Tiers({{4, 1, 0}, {4, 1e9, 0}});
  for (int root : {0, 5, 15}) {
    std::vector<int> ranks = AllDevices(t);
    std::swap(ranks[0], ranks[root]);
    const CollectiveModel model = Model(t, Collective::BROADCAST, ranks);
    EXPECT_NEAR(model.Seconds(Algorithm::kRing, 1), 3, 1e-6);
    EXPECT_NEAR(model.Seconds(Algorithm::kTree, 1), 2, 1e-6);
  }
  // A root behind a slow link of its own pays for it where another does not.
  const Topology slow = Topology::Create({{"n"},
                                          {"a", "n", true, 1, 0, 0},
                                          {"b", "n", true, 100, 0, 0},
                                          {"c", "n", true, 100, 0, 0}})
                            .value();
  EXPECT_DOUBLE_EQ(Model(slow, Collective::BROADCAST, {1, 2}).Seconds(Algorithm::kRing, 100), 1);
  EXPECT_DOUBLE_EQ(Model(slow, Collective::BROADCAST, {0, 2}).Seconds(Algorithm::kRing, 100), 100);
  // a -> b -> c: slow once; b -> a -> c: slow twice.
  EXPECT_DOUBLE_EQ(Model(slow, Collective::BROADCAST, {0, 1, 2}).Seconds(Algorithm::kRing, 100),
                   101);
  EXPECT_DOUBLE_EQ(Model(slow, Collective::BROADCAST, {1, 0, 2}).Seconds(Algorithm::kRing, 100),
                   200);
}

TEST(CollectivesTest, SixteenThousandRanks) {
  const Topology t = Tiers({{64, 1e12, 1e-6}, {32, 4e11, 1e-6}, {8, 4e11, 1e-6}});
  ASSERT_EQ(t.num_devices(), 16384);
  for (Collective::Kind kind : kKinds) {
    const CollectiveModel model = Model(t, kind);
    double sum = 0;
    for (int i = 0; i < 10000; ++i) sum += model.Best(1e3 * i).seconds;
    EXPECT_TRUE(std::isfinite(sum));
    EXPECT_TRUE(model.Has(Algorithm::kHierarchical));
  }
}

}  // namespace
}  // namespace espalier
