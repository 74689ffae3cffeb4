// How the devices of a machine hang together: a tree whose leaves are devices and whose inner nodes
// are NVSwitches, PCIe switches, hosts, network cards and network switches. Every node but the root
// has one full-duplex link to its parent. Transfers go up to the lowest common ancestor and down.
//
// A fabric with many equal paths (a fat tree, eight rails) is one node here: its links are bundles,
// with what all paths carry together (bandwidth) and what one flow gets of it (flow_bandwidth).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct TopologyNode {
  std::string name;
  std::string parent;  // empty: the root
  bool device = false;
  // The link to the parent, per direction; the root has none. bytes/s.
  double bandwidth = 0;
  double flow_bandwidth = 0;  // of one flow, where the link is a bundle; 0: bandwidth
  double latency_seconds = 0;
};

// Immutable. Nodes are numbered depth first, the root is 0, children keep the order of the list
// given; so the devices below a node have consecutive nodes. Devices are numbered in the order of
// the list given. Copies cost O(nodes).
class Topology {
 public:
  static constexpr int kMaxDevices = 65536;
  static constexpr int kMaxNodes = 4 * kMaxDevices;
  static constexpr int kMaxDepth = 32;  // links between a node and the root

  // InvalidArgument, with the node's name, the value and what is accepted: a name twice or empty; a
  // parent that is missing or a device; no root or two; a cycle of parents ("a -> b -> a"); no
  // devices; a bandwidth that is not positive and finite, a flow_bandwidth beyond it, a latency
  // that is negative or not finite. ResourceExhausted: beyond the limits above.
  static absl::StatusOr<Topology> Create(const std::vector<TopologyNode>& nodes);

  // A switch to which all devices are linked alike, so that TransferSeconds between any two is that
  // of rates.h to the bit. Errors as Create.
  static absl::StatusOr<Topology> Uniform(int devices, const v1::Link& link);

  // Everything below takes device numbers, 0 <= d < num_devices(), unless it says node or edge.
  int num_devices() const { return static_cast<int>(device_nodes_.size()); }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int DeviceNode(int device) const { return device_nodes_[device]; }
  const std::string& NodeName(int node) const { return names_[node]; }
  int Parent(int node) const { return nodes_[node].parent; }  // -1 for the root
  int Depth(int node) const { return nodes_[node].depth; }
  // The nodes below `node` and itself are node, ..., SubtreeEnd(node) - 1.
  int SubtreeEnd(int node) const { return nodes_[node].subtree_end; }
  int CommonAncestor(int node_a, int node_b) const;

  // A link is two directed edges, one to the parent and one from it.
  int num_edges() const { return 2 * (num_nodes() - 1); }
  static int UpEdge(int node) { return 2 * (node - 1); }
  static int DownEdge(int node) { return 2 * (node - 1) + 1; }
  static int EdgeNode(int edge) { return edge / 2 + 1; }  // the lower end
  double EdgeBandwidth(int edge) const { return nodes_[EdgeNode(edge)].bandwidth; }
  double EdgeFlowBandwidth(int edge) const { return nodes_[EdgeNode(edge)].flow_bandwidth; }
  double EdgeLatency(int edge) const { return nodes_[EdgeNode(edge)].latency; }
  std::string EdgeName(int edge) const;  // "host0 -> leaf"

  // The edges of a transfer in its order; none from a device to itself.
  std::vector<int> Path(int from, int to) const;
  // The same without the vector, and not in order.
  template <typename Visit>  // void(int edge)
  void VisitPath(int from, int to, Visit visit) const;

  // Sum over the path, and the least of what its links give one flow that is alone (infinite from a
  // device to itself). The same in both directions.
  double Latency(int from, int to) const;
  double Bandwidth(int from, int to) const;
  // Latency + bytes / Bandwidth; 0 from a device to itself.
  double TransferSeconds(int from, int to, double bytes) const;

 private:
  struct Node {
    int parent = -1;
    int depth = 0;
    int subtree_end = 0;
    double bandwidth = 0;
    double flow_bandwidth = 0;
    double latency = 0;
  };
  Topology() = default;

  std::vector<Node> nodes_;
  std::vector<std::string> names_;
  std::vector<int> device_nodes_;
};

template <typename Visit>
void Topology::VisitPath(int from, int to, Visit visit) const {
  int a = device_nodes_[from];
  int b = device_nodes_[to];
  while (a != b) {
    if (nodes_[a].depth >= nodes_[b].depth) {
      visit(UpEdge(a));
      a = nodes_[a].parent;
    } else {
      visit(DownEdge(b));
      b = nodes_[b].parent;
    }
  }
}

}  // namespace espalier
