// BuildMachine: checks a spec's values and expands its counts.
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "planner/machine/machine_file.h"
#include "planner/machine/rates.h"

namespace espalier {
namespace {

constexpr size_t kMaxNameLength = 64;
constexpr size_t kMaxTextLength = 4096;
constexpr int kMaxThreads = 1 << 16;
// Larger integers are not exact as JSON numbers.
constexpr int64_t kMaxBytes = int64_t{1} << 53;

absl::Status BadPlace(const std::string& place, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("machine: ", place, ": ", what));
}

std::string Shown(const std::string& text) {
  constexpr size_t kShown = 80;
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "..." : "", "\"");
}

absl::Status CheckName(const std::string& place, const std::string& name) {
  bool good = !name.empty() && name.size() <= kMaxNameLength;
  for (char c : name) good = good && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  if (good) return absl::OkStatus();
  return BadPlace(place, absl::StrCat(Shown(name), "; accepted: 1 to ", kMaxNameLength,
                                      " letters, digits, dots, underscores and hyphens"));
}

absl::Status CheckText(const std::string& place, const std::string& text) {
  bool good = text.size() <= kMaxTextLength;
  for (char c : text) good = good && !absl::ascii_iscntrl(c);
  if (good) return absl::OkStatus();
  return BadPlace(place, absl::StrCat(Shown(text), "; accepted: at most ", kMaxTextLength,
                                      " bytes without control characters"));
}

absl::Status CheckPositive(const std::string& place, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return BadPlace(place, absl::StrCat("is ", value, "; it must be greater than 0 and finite"));
}

absl::Status CheckNotNegative(const std::string& place, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return BadPlace(place, absl::StrCat("is ", value, "; it must be 0 or more and finite"));
}

struct RateKind {
  double least;
  const char* example;
};
constexpr RateKind kFlops = {kMinRate, "60 TFLOP/s"};
constexpr RateKind kMemory = {kMinRate, "900 GB/s"};
constexpr RateKind kLink = {kMinLinkRate, "10 Gbit/s"};

// Accepts 0 if `optional`.
absl::Status CheckRate(const std::string& place, double value, const RateKind& kind,
                       bool optional = false) {
  absl::Status s = optional ? CheckNotNegative(place, value) : CheckPositive(place, value);
  if (!s.ok() || value == 0 || value >= kind.least) return s;
  return BadPlace(place, absl::StrCat("is ", value, " a second; it must be at least ", kind.least,
                                      "; give it with its unit, such as \"", kind.example, "\""));
}

absl::Status CheckLatency(const std::string& place, double seconds) {
  absl::Status s = CheckNotNegative(place, seconds);
  if (!s.ok() || seconds <= kMaxLatencySeconds) return s;
  return BadPlace(place,
                  absl::StrCat("is ", seconds, " seconds; it must be at most ", kMaxLatencySeconds,
                               "; give it with its unit, such as \"5 us\""));
}

absl::Status CheckCount(const std::string& place, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return BadPlace(place, absl::StrCat("is ", value, "; it must be ", least, " to ", most));
}

absl::Status First(std::initializer_list<absl::Status> checks) {
  for (const absl::Status& s : checks) {
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckNode(const std::string& place, const MachineNode& node) {
  absl::Status s = First({CheckName(place + ".name", node.name),
                          CheckCount(place + ".count", node.count, 1, Topology::kMaxDevices)});
  if (!s.ok()) return s;
  if (node.parent.empty()) {
    if (node.count != 1) {
      return BadPlace(place + ".count",
                      absl::StrCat("is ", node.count,
                                   ", and there is no parent; there is one root, so "
                                   "it must be 1, or a parent given"));
    }
    if (node.bandwidth != 0 || node.flow_bandwidth != 0 || node.latency_seconds != 0) {
      return BadPlace(place,
                      "has a link (bandwidth, latency_seconds) but no parent; leave the link "
                      "out, or give the parent");
    }
    return absl::OkStatus();
  }
  s = First({CheckRate(place + ".bandwidth", node.bandwidth, kLink),
             CheckRate(place + ".flow_bandwidth", node.flow_bandwidth, kLink, /*optional=*/true),
             CheckLatency(place + ".latency_seconds", node.latency_seconds)});
  if (!s.ok()) return s;
  if (node.flow_bandwidth > node.bandwidth) {
    return BadPlace(place + ".flow_bandwidth",
                    absl::StrCat("is ", node.flow_bandwidth,
                                 "; one flow can have at most the bandwidth, ", node.bandwidth));
  }
  return absl::OkStatus();
}

absl::Status CheckDevices(const std::string& place, const MachineDevices& d) {
  if (absl::Status s = CheckNode(place, d.node); !s.ok()) return s;
  if (d.kind != v1::Device::CPU && d.kind != v1::Device::CUDA) {
    return BadPlace(place + ".kind",
                    absl::StrCat("is ", static_cast<int>(d.kind), "; accepted: CPU and CUDA"));
  }
  absl::Status s =
      First({CheckText(place + ".model", d.model),
             CheckCount(place + ".memory_bytes", d.memory_bytes, 1, kMaxBytes),
             CheckRate(place + ".matmul_flops", d.matmul_flops, kFlops),
             CheckRate(place + ".memory_bandwidth", d.memory_bandwidth, kMemory),
             CheckPositive(place + ".op_overhead_seconds", d.op_overhead_seconds),
             CheckLatency(place + ".op_overhead_seconds", d.op_overhead_seconds),
             CheckCount(place + ".threads", d.threads, 0, kMaxThreads),
             CheckCount(place + ".host_memory_bytes", d.host_memory_bytes, 0, kMaxBytes),
             CheckRate(place + ".host_bandwidth", d.host_bandwidth, kMemory, /*optional=*/true)});
  if (!s.ok()) return s;
  if ((d.host_memory_bytes > 0) != (d.host_bandwidth > 0)) {
    return BadPlace(
        place, absl::StrCat("host_memory_bytes is ", d.host_memory_bytes, " and host_bandwidth is ",
                            d.host_bandwidth, "; give both or neither"));
  }
  return absl::OkStatus();
}

TopologyNode ToTopologyNode(const MachineNode& node, bool device) {
  return {node.name,      node.parent,         device,
          node.bandwidth, node.flow_bandwidth, node.latency_seconds};
}

absl::Status WithPrefix(const absl::Status& s) {
  return absl::Status(s.code(), absl::StrCat("machine: ", s.message()));
}

// Checks the total numbers against the limits before anything is expanded. `tree` has one node per
// entry.
absl::Status CheckTotals(const MachineSpec& spec, const Topology& tree,
                         const std::map<std::string, std::pair<const MachineNode*, int>>& entries) {
  std::vector<int64_t> totals(tree.num_nodes(), 1);
  int64_t nodes = 0, devices = 0;
  for (int v = 0; v < tree.num_nodes(); ++v) {
    const auto [node, device] = entries.at(tree.NodeName(v));
    if (v > 0) totals[v] = totals[tree.Parent(v)] * node->count;
    nodes += totals[v];
    if (device >= 0) devices += totals[v];
    // Checked at every step, so that products do not overflow.
    if (devices > Topology::kMaxDevices || nodes > Topology::kMaxNodes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "machine: with ", totals[v], " times \"", node->name, "\" there are ", devices,
          " devices or more, and ", nodes, " nodes with them; at most ", Topology::kMaxDevices,
          " devices and ", Topology::kMaxNodes, " nodes are accepted; lower a count"));
    }
  }
  return absl::OkStatus();
}

v1::Device ToDevice(const MachineDevices& d) {
  v1::Device device;
  device.set_kind(d.kind);
  device.set_model(d.model);
  device.set_memory_bytes(d.memory_bytes);
  device.set_matmul_flops(d.matmul_flops);
  device.set_memory_bandwidth(d.memory_bandwidth);
  device.set_op_overhead_seconds(d.op_overhead_seconds);
  device.set_threads(d.threads);
  return device;
}

}  // namespace

absl::StatusOr<MachineModel> BuildMachine(const MachineSpec& spec) {
  absl::Status s =
      First({CheckName("name", spec.name), CheckText("description", spec.description)});
  if (!s.ok()) return s;
  // Entries by name: the node, and its index in spec.devices or -1.
  std::map<std::string, std::pair<const MachineNode*, int>> entries;
  std::vector<TopologyNode> one_each;
  for (size_t i = 0; i < spec.nodes.size(); ++i) {
    s = CheckNode(absl::StrCat("nodes[", i, "]"), spec.nodes[i]);
    if (!s.ok()) return s;
    entries[spec.nodes[i].name] = {&spec.nodes[i], -1};
    one_each.push_back(ToTopologyNode(spec.nodes[i], false));
  }
  for (size_t i = 0; i < spec.devices.size(); ++i) {
    s = CheckDevices(absl::StrCat("devices[", i, "]"), spec.devices[i]);
    if (!s.ok()) return s;
    entries[spec.devices[i].node.name] = {&spec.devices[i].node, static_cast<int>(i)};
    one_each.push_back(ToTopologyNode(spec.devices[i].node, true));
  }
  // Building the tree of entries finds errors in parents and checks the depth.
  const absl::StatusOr<Topology> tree = Topology::Create(one_each);
  if (!tree.ok()) return WithPrefix(tree.status());
  s = CheckTotals(spec, *tree, entries);
  if (!s.ok()) return s;

  std::vector<v1::Device> devices;
  std::vector<int64_t> host_memory_bytes;
  std::vector<double> host_bandwidth;
  std::vector<TopologyNode> all;
  // Expands entry `v` below the instance `parent`; `prefix` names the repeated entries above.
  std::function<void(int, const std::string&, const std::string&)> add =
      [&](int v, const std::string& parent, const std::string& prefix) {
        const auto [node, device] = entries.at(tree->NodeName(v));
        for (int64_t i = 0; i < node->count; ++i) {
          TopologyNode& instance = all.emplace_back(ToTopologyNode(*node, device >= 0));
          const std::string name =
              node->count == 1 ? prefix + node->name : absl::StrCat(prefix, node->name, i);
          instance.name = name;
          instance.parent = parent;
          if (device >= 0) {
            const MachineDevices& d = spec.devices[device];
            devices.push_back(ToDevice(d));
            host_memory_bytes.push_back(d.host_memory_bytes);
            host_bandwidth.push_back(d.host_bandwidth);
          }
          for (int child = v + 1; child < tree->SubtreeEnd(v); child = tree->SubtreeEnd(child)) {
            add(child, name, node->count == 1 ? prefix : name + "/");
          }
        }
      };
  add(0, "", "");
  absl::StatusOr<Topology> topology = Topology::Create(all);
  if (!topology.ok()) return WithPrefix(topology.status());
  return MachineModel{spec.name,
                      spec,
                      std::move(devices),
                      *std::move(topology),
                      std::move(host_memory_bytes),
                      std::move(host_bandwidth)};
}

}  // namespace espalier
