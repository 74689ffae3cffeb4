#include "planner/machine/topology.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

std::string Quoted(const std::string& name) {
  constexpr size_t kShown = 80;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShown)),
                      name.size() > kShown ? "..." : "", "\"");
}

absl::Status BadNode(const TopologyNode& node, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("topology: ", node.device ? "device " : "node ", Quoted(node.name), ": ", what));
}

bool IsRate(double value) { return value > 0 && std::isfinite(value); }

absl::Status CheckLink(const TopologyNode& node) {
  if (!IsRate(node.bandwidth)) {
    return BadNode(node, absl::StrCat("bandwidth is ", node.bandwidth,
                                      "; it must be bytes/s, greater than 0 and finite"));
  }
  if (node.flow_bandwidth != 0 &&
      (!IsRate(node.flow_bandwidth) || node.flow_bandwidth > node.bandwidth)) {
    return BadNode(node,
                   absl::StrCat("flow_bandwidth is ", node.flow_bandwidth,
                                "; it must be bytes/s, greater than 0 and at most the bandwidth, ",
                                node.bandwidth, ", or 0 for all of it"));
  }
  if (!(node.latency_seconds >= 0) || !std::isfinite(node.latency_seconds)) {
    return BadNode(node, absl::StrCat("latency is ", node.latency_seconds,
                                      "; it must be seconds, 0 or more and finite"));
  }
  return absl::OkStatus();
}

// Describes the cycle that the parents of `start` lead into.
absl::Status CycleError(const std::vector<TopologyNode>& nodes, const std::vector<int>& parents,
                        int start) {
  std::vector<bool> seen(nodes.size(), false);
  int at = start;
  while (!seen[at]) {
    seen[at] = true;
    at = parents[at];
  }
  constexpr int kShown = 8;
  std::string text = Quoted(nodes[at].name);
  int length = 0;
  int next = at;
  do {
    next = parents[next];
    ++length;
    if (length <= kShown || next == at) absl::StrAppend(&text, " -> ", Quoted(nodes[next].name));
    if (length == kShown + 1 && next != at) absl::StrAppend(&text, " -> ...");
  } while (next != at);
  return absl::InvalidArgumentError(absl::StrCat("topology: the parents form a cycle: ", text,
                                                 "; one of them must lead to the root"));
}

// Sets the parent of each node by index, -1 for the root; returns the root's index.
absl::StatusOr<int> FindParents(const std::vector<TopologyNode>& nodes, std::vector<int>* parents) {
  std::unordered_map<std::string, int> index;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("topology: node ", i, " has no name; every node needs one of its own"));
    }
    if (!index.emplace(nodes[i].name, static_cast<int>(i)).second) {
      return BadNode(nodes[i], "the name is used twice; every node needs one of its own");
    }
  }
  int root = -1;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent.empty()) {
      if (root >= 0) {
        return BadNode(nodes[i],
                       absl::StrCat("has no parent, and neither has ", Quoted(nodes[root].name),
                                    ": nothing links them; exactly one node, the root, "
                                    "may have none"));
      }
      root = static_cast<int>(i);
      parents->push_back(-1);
      continue;
    }
    const auto it = index.find(nodes[i].parent);
    if (it == index.end()) {
      return BadNode(nodes[i], absl::StrCat("its parent ", Quoted(nodes[i].parent),
                                            " does not exist; it must be the name of a node"));
    }
    if (nodes[it->second].device) {
      return BadNode(nodes[i], absl::StrCat("its parent ", Quoted(nodes[i].parent),
                                            " is a device; devices have nothing below them, so it "
                                            "must be another node"));
    }
    if (absl::Status link = CheckLink(nodes[i]); !link.ok()) return link;
    parents->push_back(it->second);
  }
  if (root < 0) return CycleError(nodes, *parents, 0);
  return root;
}

}  // namespace

absl::StatusOr<Topology> Topology::Create(const std::vector<TopologyNode>& nodes) {
  const auto devices =
      std::count_if(nodes.begin(), nodes.end(), [](const TopologyNode& n) { return n.device; });
  if (devices == 0) {
    return absl::InvalidArgumentError("topology: no devices; there must be 1 or more");
  }
  if (devices > kMaxDevices || nodes.size() > kMaxNodes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "topology: ", devices, " devices and ", nodes.size() - devices, " other nodes; at most ",
        kMaxDevices, " devices and ", kMaxNodes, " nodes altogether are accepted"));
  }
  std::vector<int> parents;
  const absl::StatusOr<int> root = FindParents(nodes, &parents);
  if (!root.ok()) return root.status();

  std::vector<std::vector<int>> children(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (parents[i] >= 0) children[parents[i]].push_back(static_cast<int>(i));
  }
  Topology out;
  out.nodes_.reserve(nodes.size());
  out.names_.reserve(nodes.size());
  std::vector<int> numbers(nodes.size(), -1);
  std::vector<int> open = {*root};
  while (!open.empty()) {
    const int i = open.back();
    open.pop_back();
    numbers[i] = out.num_nodes();
    Node node;
    node.subtree_end = numbers[i] + 1;
    if (parents[i] >= 0) {
      node.parent = numbers[parents[i]];
      node.depth = out.nodes_[node.parent].depth + 1;
      node.bandwidth = nodes[i].bandwidth;
      node.flow_bandwidth =
          nodes[i].flow_bandwidth == 0 ? nodes[i].bandwidth : nodes[i].flow_bandwidth;
      node.latency = nodes[i].latency_seconds;
    }
    if (node.depth > kMaxDepth) {
      return absl::ResourceExhaustedError(
          absl::StrCat("topology: node ", Quoted(nodes[i].name), " is ", node.depth,
                       " links below the root; at most ", kMaxDepth, " are accepted"));
    }
    out.nodes_.push_back(node);
    out.names_.push_back(nodes[i].name);
    open.insert(open.end(), children[i].rbegin(), children[i].rend());
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (numbers[i] < 0) return CycleError(nodes, parents, static_cast<int>(i));
    if (nodes[i].device) out.device_nodes_.push_back(numbers[i]);
  }
  // Depth-first numbers: a later node is deeper or further right.
  for (int n = out.num_nodes() - 1; n > 0; --n) {
    int& end = out.nodes_[out.nodes_[n].parent].subtree_end;
    end = std::max(end, out.nodes_[n].subtree_end);
  }
  return out;
}

absl::StatusOr<Topology> Topology::Uniform(int devices, const v1::Link& link) {
  if (devices > kMaxDevices) {
    return absl::ResourceExhaustedError(absl::StrCat("topology: ", devices, " devices; at most ",
                                                     kMaxDevices, " devices are accepted"));
  }
  std::vector<TopologyNode> nodes(1);
  nodes[0].name = "switch";
  for (int i = 0; i < devices; ++i) {
    TopologyNode& node = nodes.emplace_back();
    node.name = absl::StrCat("device", i);
    node.parent = "switch";
    node.device = true;
    node.bandwidth = link.bandwidth();
    // Doubling a half is exact.
    node.latency_seconds = link.latency_seconds() / 2;
  }
  return Create(nodes);
}

int Topology::CommonAncestor(int node_a, int node_b) const {
  while (node_a != node_b) {
    // The node with the greater number cannot be an ancestor of the other.
    int& lower = node_a > node_b ? node_a : node_b;
    lower = nodes_[lower].parent;
  }
  return node_a;
}

std::string Topology::EdgeName(int edge) const {
  const int node = EdgeNode(edge);
  const std::string& below = names_[node];
  const std::string& above = names_[nodes_[node].parent];
  return edge == UpEdge(node) ? absl::StrCat(below, " -> ", above)
                              : absl::StrCat(above, " -> ", below);
}

std::vector<int> Topology::Path(int from, int to) const {
  std::vector<int> path;
  const int top = CommonAncestor(device_nodes_[from], device_nodes_[to]);
  for (int n = device_nodes_[from]; n != top; n = nodes_[n].parent) path.push_back(UpEdge(n));
  const size_t turn = path.size();
  for (int n = device_nodes_[to]; n != top; n = nodes_[n].parent) path.push_back(DownEdge(n));
  std::reverse(path.begin() + static_cast<std::ptrdiff_t>(turn), path.end());
  return path;
}

double Topology::Latency(int from, int to) const {
  // One sum per side, so that both directions round the same way.
  double up = 0, down = 0;
  VisitPath(from, to, [&](int edge) { (edge % 2 == 0 ? up : down) += EdgeLatency(edge); });
  return up + down;
}

double Topology::Bandwidth(int from, int to) const {
  double least = std::numeric_limits<double>::infinity();
  VisitPath(from, to, [&](int edge) { least = std::min(least, EdgeFlowBandwidth(edge)); });
  return least;
}

double Topology::TransferSeconds(int from, int to, double bytes) const {
  if (from == to) return 0;
  return Latency(from, to) + bytes / Bandwidth(from, to);
}

}  // namespace espalier
