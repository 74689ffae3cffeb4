// The legal configurations of each operator, and random draws from them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "planner/pcg/node_config.h"
#include "planner/pcg/structure.h"

namespace espalier {

// Uniform random numbers that do not depend on the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  double Real() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }

 private:
  std::mt19937_64 engine_;
};

struct SpaceOptions {
  int num_devices = 1;
  bool parameter_parallel = true;  // axes of kinds kParameter and kReduction
  bool attribute_parallel = true;
  bool sample_parallel = true;
  // By node; no devices: free. Other nodes are pinned to this configuration.
  std::vector<NodeConfig> pinned;
};

// On up to 8 devices everything legal. On more, splits at most two axes of an operator at once,
// over devices that are adjacent or evenly spaced.
class SearchSpace {
 public:
  SearchSpace(const PcgStructure& structure, const SpaceOptions& options);

  // Nodes that are not pinned.
  const std::vector<NodeId>& nodes() const { return nodes_; }

  // An index of legal degrees, and a device list: contiguous, strided or one device.
  struct Choice {
    int degrees = 0;
    int stride = 1;
    int start = 0;
  };
  // Draws degrees uniformly, then a device list uniformly by stride.
  Choice DrawChoice(NodeId node, Random* random) const;
  NodeConfig ConfigOf(NodeId node, const Choice& choice) const;
  int Parts(NodeId node, const Choice& choice) const;
  NodeConfig Draw(NodeId node, Random* random) const {
    return ConfigOf(node, DrawChoice(node, random));
  }

  // A tensor between two nodes, seen from one of them.
  struct Edge {
    NodeId neighbor = kNoNode;
    double bytes = 0;
    bool to_consumer = false;
    int own_operand = 0;
    int neighbour_operand = 0;
  };
  const std::vector<Edge>& EdgesOf(NodeId node) const { return edges_[node]; }

  // Sets *out to the configuration of the edge's neighbor that holds the tensor as `config` of
  // `node` does, on the same devices and split in nothing else. Returns false if there is none.
  bool Follow(NodeId node, const NodeConfig& config, const Edge& edge, NodeConfig* out) const;

  // Draws an edge of `node` with probability proportional to tensor size; null if it has none.
  const Edge* DrawEdge(NodeId node, Random* random) const;

  // Nodes with the same operator, attributes and types as `node`, including itself: repeated
  // layers.
  const std::vector<NodeId>& EqualNodes(NodeId node) const { return classes_[class_of_[node]]; }

  // Every configuration of `node`. There are many on many devices: see CountAll.
  std::vector<NodeConfig> All(NodeId node) const;
  int64_t CountAll(NodeId node) const;

  // The configurations of `node` on devices from 0 on without gaps, those with most parts first.
  std::vector<NodeConfig> OnFirstDevices(NodeId node) const;

  const PcgStructure& structure() const { return structure_; }
  const SpaceOptions& options() const { return options_; }
  int num_devices() const { return options_.num_devices; }
  size_t num_nodes() const { return edges_.size(); }  // of the graph, including dead ones

  bool has_pins() const { return !options_.pinned.empty(); }

 private:
  bool Allowed(const Axis& axis) const;
  // Null if the node is free.
  const NodeConfig* PinnedConfig(NodeId node) const {
    const std::vector<NodeConfig>& all = options_.pinned;
    return all.empty() || all[node].devices.empty() ? nullptr : &all[node];
  }
  // Device lists with one stride: they begin at 0, step, 2 * step, ...
  struct Run {
    int stride = 1;
    int step = 1;
    int starts = 1;
  };
  std::vector<Run> Runs(int parts) const;

  const PcgStructure& structure_;
  const SpaceOptions options_;
  std::vector<NodeId> nodes_;
  std::vector<std::vector<std::vector<int>>> degrees_;  // by node
  std::vector<std::vector<Edge>> edges_;                // by node
  std::vector<int> class_of_;
  std::vector<std::vector<NodeId>> classes_;
};

}  // namespace espalier
