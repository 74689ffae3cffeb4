#include "planner/machine/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/machine/rates.h"
#include "planner/machine/test_topologies.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TopologyNode Root(const std::string& name) { return {name}; }
TopologyNode Switch(const std::string& name, const std::string& parent, double bandwidth,
                    double latency) {
  return {name, parent, false, bandwidth, 0, latency};
}
TopologyNode Leaf(const std::string& name, const std::string& parent, double bandwidth,
                  double latency) {
  return {name, parent, true, bandwidth, 0, latency};
}

// Two hosts of two devices: 100 bytes/s and 1 s inside, 10 bytes/s and 5 s between hosts.
std::vector<TopologyNode> TwoHosts() {
  return {Root("net"),
          Switch("h0", "net", 10, 5),
          Switch("h1", "net", 10, 5),
          Leaf("d0", "h0", 100, 1),
          Leaf("d1", "h0", 100, 1),
          Leaf("d2", "h1", 100, 1),
          Leaf("d3", "h1", 100, 1)};
}

TEST(TopologyTest, PathGoesOverTheLowestCommonAncestor) {
  const Topology t = Topology::Create(TwoHosts()).value();
  ASSERT_EQ(t.num_devices(), 4);
  EXPECT_EQ(t.num_nodes(), 7);
  EXPECT_EQ(t.num_edges(), 12);
  std::vector<std::string> names;
  for (int edge : t.Path(1, 2)) names.push_back(t.EdgeName(edge));
  EXPECT_THAT(names, ElementsAre("d1 -> h0", "h0 -> net", "net -> h1", "h1 -> d2"));
  names.clear();
  for (int edge : t.Path(3, 2)) names.push_back(t.EdgeName(edge));
  EXPECT_THAT(names, ElementsAre("d3 -> h1", "h1 -> d2"));
  EXPECT_TRUE(t.Path(2, 2).empty());
}

TEST(TopologyTest, TransferTakesTheSumOfLatenciesAndTheNarrowestLink) {
  const Topology t = Topology::Create(TwoHosts()).value();
  EXPECT_EQ(t.Latency(0, 1), 2);
  EXPECT_EQ(t.Bandwidth(0, 1), 100);
  EXPECT_EQ(t.TransferSeconds(0, 1, 200), 4);
  EXPECT_EQ(t.Latency(0, 3), 12);
  EXPECT_EQ(t.Bandwidth(0, 3), 10);
  EXPECT_EQ(t.TransferSeconds(0, 3, 200), 32);
  EXPECT_EQ(t.TransferSeconds(2, 2, 1e9), 0);
}

TEST(TopologyTest, OneFlowOverABundleGetsOneLinkOfIt) {
  std::vector<TopologyNode> nodes = TwoHosts();
  nodes[2].flow_bandwidth = 2.5;
  const Topology t = Topology::Create(nodes).value();
  EXPECT_EQ(t.Bandwidth(0, 3), 2.5);
  EXPECT_EQ(t.Bandwidth(0, 1), 100);
}

TEST(TopologyTest, DevicesKeepTheOrderOfTheListAndNodesAreDepthFirst) {
  std::vector<TopologyNode> nodes = TwoHosts();
  std::swap(nodes[0], nodes[6]);  // d3 first, the root last
  const Topology t = Topology::Create(nodes).value();
  EXPECT_EQ(t.NodeName(t.DeviceNode(0)), "d3");
  EXPECT_EQ(t.NodeName(t.DeviceNode(1)), "d0");
  EXPECT_EQ(t.NodeName(0), "net");
  EXPECT_EQ(t.Parent(0), -1);
  for (int n = 1; n < t.num_nodes(); ++n) {
    EXPECT_LT(t.Parent(n), n);
    EXPECT_LE(t.SubtreeEnd(n), t.SubtreeEnd(t.Parent(n)));
    EXPECT_EQ(t.Depth(n), t.Depth(t.Parent(n)) + 1);
  }
  EXPECT_EQ(t.SubtreeEnd(0), 7);
}

TEST(TopologyTest, OneDeviceAloneIsItsOwnRoot) {
  const Topology t = Topology::Create({{"only", "", true}}).value();
  EXPECT_EQ(t.num_devices(), 1);
  EXPECT_EQ(t.num_edges(), 0);
  EXPECT_EQ(t.TransferSeconds(0, 0, 10), 0);
}

TEST(TopologyTest, UniformIsTheLinkOfRatesToTheBit) {
  std::mt19937_64 random(1);
  auto real = [&] { return std::exp(static_cast<double>(random() % 4000) / 100 - 20); };
  for (int i = 0; i < 2000; ++i) {
    v1::Link link;
    link.set_bandwidth(real() * 1e9);
    link.set_latency_seconds(i % 10 == 0 ? 0 : real() / 1e4);
    const Topology t = Topology::Uniform(5, link).value();
    const double bytes = i % 7 == 0 ? 0 : real() * 1e8;
    EXPECT_EQ(t.TransferSeconds(4, i % 4, bytes), TransferSeconds(link, bytes));
  }
}

TEST(TopologyTest, RandomTreesAreSymmetricAndPathsAreWalks) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 50; ++round) {
    const Topology t = Topology::Create(RandomTree(random, 8, 20, {1e9, 1e-5, true})).value();
    for (int a = 0; a < 20; ++a) {
      for (int b = 0; b < 20; ++b) {
        EXPECT_EQ(t.TransferSeconds(a, b, 1e6), t.TransferSeconds(b, a, 1e6));
        int at = t.DeviceNode(a);
        std::multiset<int> edges;
        for (int edge : t.Path(a, b)) {
          const int low = Topology::EdgeNode(edge);
          const bool up = edge == Topology::UpEdge(low);
          EXPECT_EQ(at, up ? low : t.Parent(low));
          at = up ? t.Parent(low) : low;
          edges.insert(edge);
        }
        EXPECT_EQ(at, t.DeviceNode(b));
        std::multiset<int> visited;
        t.VisitPath(a, b, [&](int edge) { visited.insert(edge); });
        EXPECT_EQ(edges, visited);
        EXPECT_EQ(std::set<int>(edges.begin(), edges.end()).size(), edges.size());
      }
    }
  }
}

TEST(TopologyTest, MoreBandwidthOrLessLatencyNeverSlowsATransfer) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<TopologyNode> nodes = RandomTree(random, 6, 10, {1e9, 1e-5, true});
    const Topology before = Topology::Create(nodes).value();
    TopologyNode& node = nodes[1 + random() % (nodes.size() - 1)];
    if (round % 2 == 0) {
      node.bandwidth *= 2;
      node.flow_bandwidth *= 2;
    } else {
      node.latency_seconds /= 2;
    }
    const Topology after = Topology::Create(nodes).value();
    for (int a = 0; a < 10; ++a) {
      for (int b = 0; b < 10; ++b) {
        EXPECT_LE(after.TransferSeconds(a, b, 1e5), before.TransferSeconds(a, b, 1e5));
      }
    }
  }
}

TEST(TopologyTest, AMillionQueriesOnSixteenThousandDevices) {
  std::vector<TopologyNode> nodes = {Root("spine")};
  for (int l = 0; l < 64; ++l) {
    nodes.push_back(Switch(absl::StrCat("leaf", l), "spine", 1e12, 1e-6));
    for (int h = 0; h < 32; ++h) {
      const std::string host = absl::StrCat("host", l, ".", h);
      nodes.push_back(Switch(host, absl::StrCat("leaf", l), 4e11, 1e-6));
      for (int d = 0; d < 8; ++d)
        nodes.push_back(Leaf(absl::StrCat(host, ".", d), host, 4e11, 1e-6));
    }
  }
  const Topology t = Topology::Create(nodes).value();
  ASSERT_EQ(t.num_devices(), 16384);
  std::mt19937_64 random(4);
  double sum = 0;
  for (int i = 0; i < 1000000; ++i) {
    sum += t.TransferSeconds(static_cast<int>(random() % 16384), static_cast<int>(random() % 16384),
                             1e6);
  }
  EXPECT_TRUE(std::isfinite(sum));
}

// Creates TwoHosts after a change and returns the error message.
template <typename Change>
std::string ErrorAfter(Change change) {
  std::vector<TopologyNode> nodes = TwoHosts();
  change(nodes);
  const auto t = Topology::Create(nodes);
  return t.ok() ? "accepted" : std::string(t.status().message());
}

TEST(TopologyErrorTest, BadLinksNameTheNodeTheValueAndWhatIsAccepted) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  for (double bad : {0.0, -3.0, nan, infinite}) {
    EXPECT_THAT(ErrorAfter([&](auto& n) { n[1].bandwidth = bad; }),
                AllOf(HasSubstr("\"h0\""), HasSubstr(absl::StrCat("bandwidth is ", bad)),
                      HasSubstr("greater than 0")));
  }
  for (double bad : {-1.0, nan, infinite}) {
    EXPECT_THAT(ErrorAfter([&](auto& n) { n[3].latency_seconds = bad; }),
                AllOf(HasSubstr("device \"d0\""), HasSubstr(absl::StrCat("latency is ", bad)),
                      HasSubstr("0 or more")));
  }
  for (double bad : {-1.0, nan, infinite, 11.0}) {
    EXPECT_THAT(ErrorAfter([&](auto& n) { n[2].flow_bandwidth = bad; }),
                AllOf(HasSubstr("\"h1\""), HasSubstr(absl::StrCat("flow_bandwidth is ", bad)),
                      HasSubstr("at most the bandwidth, 10")));
  }
}

TEST(TopologyErrorTest, BadTreesNameTheNodes) {
  EXPECT_THAT(ErrorAfter([](auto& n) { n[1].parent = "nowhere"; }),
              AllOf(HasSubstr("\"h0\""), HasSubstr("\"nowhere\" does not exist")));
  EXPECT_THAT(ErrorAfter([](auto& n) { n[1].parent = "d3"; }),
              AllOf(HasSubstr("\"h0\""), HasSubstr("\"d3\" is a device")));
  EXPECT_THAT(ErrorAfter([](auto& n) { n[6].parent = ""; }),
              AllOf(HasSubstr("device \"d3\""), HasSubstr("neither has \"net\""),
                    HasSubstr("exactly one node")));
  EXPECT_THAT(ErrorAfter([](auto& n) { n[2].name = "h0"; }),
              AllOf(HasSubstr("\"h0\""), HasSubstr("twice")));
  EXPECT_THAT(ErrorAfter([](auto& n) { n[2].name = ""; }), HasSubstr("node 2 has no name"));
  EXPECT_THAT(ErrorAfter([](auto& n) { n.resize(3); }), HasSubstr("no devices; there must be 1"));
  EXPECT_THAT(ErrorAfter([](auto& n) { n.clear(); }), HasSubstr("no devices"));
}

TEST(TopologyErrorTest, ReportsCycles) {
  // Next to a valid tree, with unreachable devices.
  EXPECT_THAT(ErrorAfter([](auto& n) {
                n[1].parent = "h1";
                n[2].parent = "h0";
              }),
              HasSubstr("a cycle: \"h0\" -> \"h1\" -> \"h0\""));
  // Without any root.
  EXPECT_THAT(ErrorAfter([](auto& n) { n[0] = Switch("net", "h0", 10, 1); }),
              HasSubstr("a cycle: \"net\" -> \"h0\" -> \"net\""));
  EXPECT_THAT(ErrorAfter([](auto& n) { n[1].parent = "h0"; }),
              HasSubstr("a cycle: \"h0\" -> \"h0\""));
  // A long cycle is abbreviated.
  std::vector<TopologyNode> nodes = {{"d", "n0", true, 1, 0, 0}};
  for (int i = 0; i < 1000; ++i) {
    nodes.push_back(Switch(absl::StrCat("n", i), absl::StrCat("n", (i + 1) % 1000), 1, 0));
  }
  const std::string message(Topology::Create(nodes).status().message());
  EXPECT_THAT(message, HasSubstr("-> ... -> \"n0\""));
  EXPECT_LT(message.size(), 300);
}

TEST(TopologyErrorTest, ReportsLimits) {
  v1::Link link;
  link.set_bandwidth(1);
  EXPECT_EQ(Topology::Uniform(65536, link)->num_devices(), 65536);
  const absl::Status many = Topology::Uniform(65537, link).status();
  EXPECT_EQ(many.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(many.message()),
              AllOf(HasSubstr("65537 devices"), HasSubstr("at most 65536")));
  EXPECT_FALSE(Topology::Uniform(0, link).ok());
  EXPECT_FALSE(Topology::Uniform(-1, link).ok());
  EXPECT_FALSE(Topology::Uniform(2, v1::Link()).ok());

  std::vector<TopologyNode> chain = {Root("n0")};
  for (int i = 1; i < 40; ++i) {
    chain.push_back(Switch(absl::StrCat("n", i), absl::StrCat("n", i - 1), 1, 0));
  }
  chain.push_back(Leaf("d", "n39", 1, 0));
  EXPECT_THAT(std::string(Topology::Create(chain).status().message()),
              AllOf(HasSubstr("33 links below the root"), HasSubstr("at most 32")));
}

}  // namespace
}  // namespace espalier
