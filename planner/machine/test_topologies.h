// Topologies for tests.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/machine/topology.h"

namespace espalier {

struct Tier {
  int count = 1;  // per node of the tier above
  double bandwidth = 0;
  double latency = 0;
  double flow_bandwidth = 0;
};

// Builds tiers from the root down; the last tier is the devices.
inline Topology Tiers(const std::vector<Tier>& tiers) {
  std::vector<TopologyNode> nodes = {{"n"}};
  std::vector<std::string> above = {"n"};
  for (size_t t = 0; t < tiers.size(); ++t) {
    std::vector<std::string> made;
    for (const std::string& parent : above) {
      for (int i = 0; i < tiers[t].count; ++i) {
        made.push_back(absl::StrCat(parent, ".", i));
        nodes.push_back({made.back(), parent, t + 1 == tiers.size(), tiers[t].bandwidth,
                         tiers[t].flow_bandwidth, tiers[t].latency});
      }
    }
    above = made;
  }
  return Topology::Create(nodes).value();
}

struct TopologyLimits {
  double bandwidth = 0;
  double latency = 0;
  bool bundles = false;  // half of the links limit a flow to a quarter
};

// Attaches every node to a random earlier switch.
inline std::vector<TopologyNode> RandomTree(std::mt19937_64& random, int switches, int devices,
                                            const TopologyLimits& most) {
  auto part = [&] { return static_cast<double>(1 + random() % 1000) / 1000; };
  std::vector<TopologyNode> nodes = {{"s0"}};
  for (int i = 1; i < switches + devices; ++i) {
    TopologyNode node;
    node.device = i >= switches;
    node.name = absl::StrCat(node.device ? "d" : "s", i);
    node.parent = absl::StrCat("s", random() % static_cast<uint64_t>(std::min(i, switches)));
    node.bandwidth = most.bandwidth * part();
    if (most.bundles && random() % 2 == 0) node.flow_bandwidth = node.bandwidth / 4;
    node.latency_seconds = most.latency * part();
    nodes.push_back(node);
  }
  return nodes;
}

inline std::vector<int> AllDevices(const Topology& topology) {
  std::vector<int> ranks(topology.num_devices());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace espalier
