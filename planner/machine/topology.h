// The topology of a machine: a tree whose leaves are devices and whose inner nodes are NVSwitches,
// PCIe switches, hosts, network cards and network switches. Every node but the root has one
// full-duplex link to its parent. Transfers go up to the lowest common ancestor and down.
//
// A fabric with many equal paths (a fat tree, eight rails) is one node. Its links are bundles:
// `bandwidth` is the total of all paths, `flow_bandwidth` what a single flow can use.
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
  // Link to the parent, per direction, in bytes/s. The root has none.
  double bandwidth = 0;
  double flow_bandwidth = 0;  // of a single flow, if the link is a bundle; 0: bandwidth
  double latency_seconds = 0;
};

// Immutable. Nodes are numbered depth first; the root is 0; children keep the order of the given
// list, so the devices below a node have consecutive nodes. Devices are numbered in the order of
// the given list. Copies cost O(nodes).
class Topology {
 public:
  static constexpr int kMaxDevices = 65536;
  static constexpr int kMaxNodes = 4 * kMaxDevices;
  static constexpr int kMaxDepth = 32;  // links between a node and the root

  // Returns InvalidArgument, with the node's name, the value and what is accepted, for a repeated
  // or empty name; a missing parent, or a device as parent; no root or two; a cycle of parents ("a
  // -> b -> a"); no devices; a bandwidth that is not positive and finite; a flow_bandwidth above
  // it; or a latency that is negative or not finite. Returns ResourceExhausted beyond the limits
  // above.
  static absl::StatusOr<Topology> Create(const std::vector<TopologyNode>& nodes);

  // A switch with identical links to all devices: TransferSeconds between any two equals that of
  // rates.h to the bit. Errors as Create.
  static absl::StatusOr<Topology> Uniform(int devices, const v1::Link& link);

  // Arguments below are device numbers, 0 <= d < num_devices(), unless named node or edge.
  int num_devices() const { return static_cast<int>(device_nodes_.size()); }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int DeviceNode(int device) const { return device_nodes_[device]; }
  const std::string& NodeName(int node) const { return names_[node]; }
  int Parent(int node) const { return nodes_[node].parent; }  // -1 for the root
  int Depth(int node) const { return nodes_[node].depth; }
  // The subtree of `node` is nodes `node` to SubtreeEnd(node) - 1.
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

  // Returns the edges of a transfer in order; none from a device to itself.
  std::vector<int> Path(int from, int to) const;
  // Like Path, without the vector and in no particular order.
  template <typename Visit>  // void(int edge)
  void VisitPath(int from, int to, Visit visit) const;

  // Latency is the sum over the path; Bandwidth is the least single-flow bandwidth on it (infinite
  // from a device to itself). Both are symmetric.
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
