// Files that describe machines, so that plans can be made for hardware that nobody has here. JSON:
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
// bandwidth, flow_bandwidth and latency_seconds are those of the link to the parent (see
// topology.h); the root has no parent and no link. count, 1 if left out, is how many there are
// below each parent: above, 128 devices. Sizes and rates are numbers in base units or text with a
// unit. model, threads, flow_bandwidth, the host_ fields, description and nodes may be left out.
// Several entries of different hosts or devices make a machine of different parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/machine/topology.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

// One entry of "nodes".
struct MachineNode {
  std::string name;
  std::string parent;  // empty: the root
  int64_t count = 1;   // below each parent
  // Of the link to the parent, per direction, as in TopologyNode.
  double bandwidth = 0;
  double flow_bandwidth = 0;
  double latency_seconds = 0;

  bool operator==(const MachineNode&) const = default;
};

// One entry of "devices": devices that are all alike. The rates are those of v1::Device.
struct MachineDevices {
  MachineNode node;
  v1::Device::Kind kind = v1::Device::KIND_UNSPECIFIED;
  std::string model;
  int64_t memory_bytes = 0;
  double matmul_flops = 0;
  double memory_bandwidth = 0;
  double op_overhead_seconds = 0;
  int threads = 0;
  // What each may use of the host's memory for tensors that are swapped out, and bytes/s to it, per
  // direction. 0: none.
  int64_t host_memory_bytes = 0;
  double host_bandwidth = 0;

  bool operator==(const MachineDevices&) const = default;
};

// What a file says.
struct MachineSpec {
  std::string name;
  std::string description;
  std::vector<MachineNode> nodes;
  std::vector<MachineDevices> devices;

  bool operator==(const MachineSpec&) const = default;
};

// A spec with its counts written out. Device i of all lists is device i of the topology; they are
// numbered depth first, so those of one host follow each other. Instances are called "host3/gpu5".
struct MachineModel {
  std::string name;
  MachineSpec spec;  // what this was built from
  std::vector<v1::Device> devices;
  Topology topology;
  std::vector<int64_t> host_memory_bytes;
  std::vector<double> host_bandwidth;
};

// Reads, checks and writes the counts out. Errors name the place ("devices[3].memory"), what stands
// there and what is accepted. InvalidArgument: not JSON (with line and column); a field unknown,
// twice, missing, of the wrong type or out of range; a bad unit; and what Topology::Create refuses.
// ResourceExhausted: over 16 MiB of text, or a machine beyond the limits of Topology.
absl::StatusOr<MachineModel> ReadMachine(const std::string& text);

// The same for a spec that a program made, and for a caller who only wants the spec.
absl::StatusOr<MachineModel> BuildMachine(const MachineSpec& spec);
absl::StatusOr<MachineSpec> ParseMachine(const std::string& text);

// Canonical text: equal specs give equal text, and ParseMachine gives the spec back, if it is
// one that BuildMachine accepts.
std::string WriteMachine(const MachineSpec& spec);

}  // namespace espalier
