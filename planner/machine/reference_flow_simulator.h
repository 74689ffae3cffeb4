// An event-driven simulation of flows over a topology: the reference for the closed formulas.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "planner/machine/topology.h"

namespace espalier {

struct TestFlow {
  int from = 0, to = 0;  // devices
  double bytes = 0;
};

// Returns the end time of each flow if all start at 0, with max-min fair shares recomputed whenever
// a flow ends. Ignores latencies and single-flow bandwidths.
inline std::vector<double> SimulateFlows(const Topology& t, const std::vector<TestFlow>& flows) {
  std::vector<double> left, ends(flows.size(), 0);
  std::vector<std::vector<int>> paths;
  for (const TestFlow& flow : flows) {
    left.push_back(flow.bytes);
    paths.push_back(t.Path(flow.from, flow.to));
  }
  double now = 0;
  while (true) {
    std::vector<double> rate(flows.size(), -1);
    std::map<int, double> free;
    size_t open = 0;
    for (size_t f = 0; f < flows.size(); ++f) {
      if (left[f] <= 0) continue;
      ++open;
      for (int e : paths[f]) free[e] = t.EdgeBandwidth(e);
    }
    if (open == 0) return ends;
    for (size_t fixed = 0; fixed < open;) {
      std::map<int, int> users;
      for (size_t f = 0; f < flows.size(); ++f) {
        if (left[f] <= 0 || rate[f] >= 0) continue;
        for (int e : paths[f]) ++users[e];
      }
      int narrow = -1;
      double share = std::numeric_limits<double>::infinity();
      for (auto [e, count] : users) {
        if (free[e] / count < share) share = free[narrow = e] / count;
      }
      for (size_t f = 0; f < flows.size(); ++f) {
        if (left[f] <= 0 || rate[f] >= 0) continue;
        if (std::count(paths[f].begin(), paths[f].end(), narrow) == 0) continue;
        rate[f] = share;
        ++fixed;
        for (int e : paths[f]) free[e] -= share;
      }
    }
    double next = std::numeric_limits<double>::infinity();
    for (size_t f = 0; f < flows.size(); ++f) {
      if (left[f] > 0) next = std::min(next, left[f] / rate[f]);
    }
    now += next;
    for (size_t f = 0; f < flows.size(); ++f) {
      if (left[f] <= 0) continue;
      left[f] -= rate[f] * next;
      if (left[f] >= flows[f].bytes * 1e-12) continue;
      left[f] = 0;
      ends[f] = now;
    }
  }
}

}  // namespace espalier
