// Files that describe machines, for planning on hardware that is not available. JSON:
//
//   {
//     "format_version": 1,
//     "name": "two-racks",
//     "description": "free text, optional",
//     "nodes": [
//       {"name": "spine"},
//       {"name": "host", "parent": "spine", "count": 16, "bandwidth": "400 GB/s",
//        "flow_bandwidth": "400 Gbit/s", "latency_seconds": "5 us"}
//     ],
//     "devices": [
//       {"name": "gpu", "parent": "host", "count": 8, "bandwidth": "450 GB/s",
//        "latency_seconds": "2 us", "kind": "cuda", "model": "NVIDIA H200",
//        "memory_bytes": "136 GiB", "matmul_flops": "50 TFLOP/s", "memory_bandwidth": "4.2 TB/s",
//        "op_overhead_seconds": "4 us", "host_memory_bytes": "250 GB", "host_bandwidth": "50 GB/s"}
//     ]
//   }
//
// bandwidth, flow_bandwidth and latency_seconds describe the link to the parent (see topology.h);
// the root has no parent and no link. count (default 1) is the number below each parent: 128
// devices in the example. Sizes and rates are numbers in base units, or text with a unit. Optional:
// model, threads, flow_bandwidth, the host_ fields, description and nodes. Use several entries for
// hosts or devices of different kinds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"
#include "planner/machine/topology.h"

namespace espalier {

// One entry of "nodes".
struct MachineNode {
  std::string name;
  std::string parent;  // empty: the root
  int64_t count = 1;   // below each parent
  // Link to the parent, per direction, as in TopologyNode.
  double bandwidth = 0;
  double flow_bandwidth = 0;
  double latency_seconds = 0;

  bool operator==(const MachineNode&) const = default;
};

// One entry of "devices": identical devices. The rates are those of proto::Device.
struct MachineDevices {
  MachineNode node;
  v1::Device::Kind kind = v1::Device::KIND_UNSPECIFIED;
  std::string model;
  int64_t memory_bytes = 0;
  double matmul_flops = 0;
  double memory_bandwidth = 0;
  double op_overhead_seconds = 0;
  int threads = 0;
  // Host memory that each device may use for swapped-out tensors, and the bandwidth to it in
  // bytes/s, per direction. 0: none.
  int64_t host_memory_bytes = 0;
  double host_bandwidth = 0;

  bool operator==(const MachineDevices&) const = default;
};

// The contents of a machine file.
struct MachineSpec {
  std::string name;
  std::string description;
  std::vector<MachineNode> nodes;
  std::vector<MachineDevices> devices;

  bool operator==(const MachineSpec&) const = default;
};

// A spec with its counts expanded. Device i of all lists is device i of the topology. Devices are
// numbered depth first, so those of one host are consecutive. Instances are named "host3/gpu5".
struct MachineModel {
  std::string name;
  MachineSpec spec;  // the spec it was built from
  std::vector<v1::Device> devices;
  Topology topology;
  std::vector<int64_t> host_memory_bytes;
  std::vector<double> host_bandwidth;
};

// Parses, checks and expands a machine file. Errors name the place ("devices[3].memory"), the value
// found and what is accepted. Returns InvalidArgument for text that is not JSON (with line and
// column); an unknown, repeated, missing, mistyped or out-of-range field; a bad unit; or what
// Topology::Create rejects. Returns ResourceExhausted for more than 16 MiB of text or a machine
// beyond Topology's limits.
absl::StatusOr<MachineModel> ReadMachine(const std::string& text);

// BuildMachine checks and expands a spec; ParseMachine parses and checks one without expanding.
absl::StatusOr<MachineModel> BuildMachine(const MachineSpec& spec);
absl::StatusOr<MachineSpec> ParseMachine(const std::string& text);

// Returns canonical text: equal specs give equal text, and ParseMachine restores any spec that
// BuildMachine accepts.
std::string WriteMachine(const MachineSpec& spec);

}  // namespace espalier
