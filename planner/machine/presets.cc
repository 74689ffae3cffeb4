#include "planner/machine/presets.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace espalier {
namespace {

// $HOSTS and $PER_HOST are substituted.
struct Data {
  const char* name;
  const char* summary;
  int per_host;
  int max_devices;
  const char* text;
};

// matmul_flops is the rate of f32 products without TF32, as the worker measures it (proto Device).
//
// NVIDIA H200 data sheet, SXM (peak): f32 67 TFLOP/s; bf16 989 TFLOP/s dense (1,979 with sparsity);
// memory 4.8 TB/s; NVLink 900 GB/s for both directions; PCIe 5.0 x16 64 GB/s per direction.
// NVIDIA A100 80 GB data sheet, SXM (peak): f32 19.5 TFLOP/s; bf16 312 TFLOP/s dense; memory
// 2,039 GB/s; NVLink 600 GB/s for both directions; PCIe 4.0 x16 32 GB/s per direction.
// Fractions: 0.75 of f32 on the H200 (its power limit), 0.9 on the A100; memory, NVLink and PCIe
// 0.85; network 0.9. Memory is what drivers report, about 140 and 80 GiB, less 4 for contexts and
// libraries. Hosts have 2 TB for 8 GPUs (DGX H200 and DGX A100 data sheets). The network is a fat
// tree without bottleneck, here one switch; one flow passes one card.
constexpr Data kPresets[] = {
    {"h200x8", "one host of up to 8 NVIDIA H200 on NVSwitch", 8, 8, R"json({
  "format_version": 1,
  "name": "h200x8",
  "description": "One host of NVIDIA H200 SXM 141 GB. Data sheet x fraction reached: f32 67 TFLOP/s x 0.75 (for bf16 models write 989 TFLOP/s x 0.7 = 690 TFLOP/s), memory 4.8 TB/s x 0.85, NVLink 450 GB/s per direction x 0.85, PCIe 5.0 64 GB/s x 0.85. Latencies are assumptions.",
  "nodes": [
    {"name": "nvswitch"}
  ],
  "devices": [
    {"name": "gpu", "parent": "nvswitch", "count": $PER_HOST, "bandwidth": "382.5 GB/s", "latency_seconds": "2 us",
     "kind": "cuda", "model": "NVIDIA H200", "memory_bytes": "136 GiB", "matmul_flops": "50 TFLOP/s",
     "memory_bandwidth": "4.08 TB/s", "op_overhead_seconds": "4 us",
     "host_memory_bytes": "250 GB", "host_bandwidth": "54.4 GB/s"}
  ]
})json"},
    {"h200-cluster", "hosts of 8 NVIDIA H200, eight 400 Gbit/s cards each", 8, 65536, R"json({
  "format_version": 1,
  "name": "h200-cluster",
  "description": "Hosts of 8 NVIDIA H200 SXM 141 GB and 8 network cards of 400 Gbit/s on a fat tree. Data sheet x fraction reached: f32 67 TFLOP/s x 0.75 (for bf16 models write 989 TFLOP/s x 0.7 = 690 TFLOP/s), memory 4.8 TB/s x 0.85, NVLink 450 GB/s per direction x 0.85, PCIe 5.0 64 GB/s x 0.85, network 50 GB/s a card x 0.9. Latencies are assumptions.",
  "nodes": [
    {"name": "network"},
    {"name": "host", "parent": "network", "count": $HOSTS, "bandwidth": "360 GB/s", "flow_bandwidth": "45 GB/s", "latency_seconds": "3 us"}
  ],
  "devices": [
    {"name": "gpu", "parent": "host", "count": $PER_HOST, "bandwidth": "382.5 GB/s", "latency_seconds": "2 us",
     "kind": "cuda", "model": "NVIDIA H200", "memory_bytes": "136 GiB", "matmul_flops": "50 TFLOP/s",
     "memory_bandwidth": "4.08 TB/s", "op_overhead_seconds": "4 us",
     "host_memory_bytes": "250 GB", "host_bandwidth": "54.4 GB/s"}
  ]
})json"},
    {"a100-cluster", "hosts of 8 NVIDIA A100 80 GB, eight 200 Gbit/s HDR cards each", 8, 65536,
     R"json({
  "format_version": 1,
  "name": "a100-cluster",
  "description": "Hosts of 8 NVIDIA A100 SXM 80 GB and 8 HDR InfiniBand cards of 200 Gbit/s on a fat tree. Data sheet x fraction reached: f32 19.5 TFLOP/s x 0.9 (for bf16 models write 312 TFLOP/s x 0.8 = 250 TFLOP/s), memory 2.039 TB/s x 0.85, NVLink 300 GB/s per direction x 0.85, PCIe 4.0 32 GB/s x 0.85, network 25 GB/s a card x 0.9. Latencies are assumptions.",
  "nodes": [
    {"name": "network"},
    {"name": "host", "parent": "network", "count": $HOSTS, "bandwidth": "180 GB/s", "flow_bandwidth": "22.5 GB/s", "latency_seconds": "3 us"}
  ],
  "devices": [
    {"name": "gpu", "parent": "host", "count": $PER_HOST, "bandwidth": "255 GB/s", "latency_seconds": "2 us",
     "kind": "cuda", "model": "NVIDIA A100 80 GB", "memory_bytes": "76 GiB", "matmul_flops": "17.5 TFLOP/s",
     "memory_bandwidth": "1.73 TB/s", "op_overhead_seconds": "4 us",
     "host_memory_bytes": "250 GB", "host_bandwidth": "27.2 GB/s"}
  ]
})json"},
    // Intel's page of the Xeon Gold 6338: 32 cores, 2.0 GHz base, 2 AVX-512 FMA units each (64
    // f32 operations a cycle: 4.1 TFLOP/s), 8 channels of DDR4-3200 (204.8 GB/s).
    {"cpu-ethernet", "CPU hosts on 25 Gbit/s Ethernet", 1, 65536, R"json({
  "format_version": 1,
  "name": "cpu-ethernet",
  "description": "Hosts of one 32-core Xeon Gold 6338 on 25 Gbit/s Ethernet. Data sheet x fraction reached: f32 4.1 TFLOP/s x 0.7, memory 204.8 GB/s x 0.75, network 3.125 GB/s x 0.9. Latencies are assumptions (TCP).",
  "nodes": [
    {"name": "switch"}
  ],
  "devices": [
    {"name": "host", "parent": "switch", "count": $HOSTS, "bandwidth": "2.8 GB/s", "latency_seconds": "25 us",
     "kind": "cpu", "model": "Intel Xeon Gold 6338", "memory_bytes": "240 GB", "matmul_flops": "2.9 TFLOP/s",
     "memory_bandwidth": "154 GB/s", "op_overhead_seconds": "10 us", "threads": 32}
  ]
})json"},
    {"cpu-ethernet-10g", "CPU hosts on 10 Gbit/s Ethernet", 1, 65536, R"json({
  "format_version": 1,
  "name": "cpu-ethernet-10g",
  "description": "Hosts of one 32-core Xeon Gold 6338 on 10 Gbit/s Ethernet. Data sheet x fraction reached: f32 4.1 TFLOP/s x 0.7, memory 204.8 GB/s x 0.75, network 1.25 GB/s x 0.9. Latencies are assumptions (TCP).",
  "nodes": [
    {"name": "switch"}
  ],
  "devices": [
    {"name": "host", "parent": "switch", "count": $HOSTS, "bandwidth": "1.125 GB/s", "latency_seconds": "25 us",
     "kind": "cpu", "model": "Intel Xeon Gold 6338", "memory_bytes": "240 GB", "matmul_flops": "2.9 TFLOP/s",
     "memory_bandwidth": "154 GB/s", "op_overhead_seconds": "10 us", "threads": 32}
  ]
})json"},
};

}  // namespace

std::vector<MachinePreset> MachinePresets() {
  std::vector<MachinePreset> presets;
  for (const Data& d : kPresets) presets.push_back({d.name, d.summary, d.per_host, d.max_devices});
  return presets;
}

absl::StatusOr<std::string> PresetText(const std::string& name, int devices) {
  std::string names;
  for (const Data& d : kPresets) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", d.name);
    if (name != d.name) continue;
    if (devices < 1 || devices > d.max_devices ||
        (devices > d.per_host && devices % d.per_host != 0)) {
      const std::string one =
          d.per_host == 1 ? "" : absl::StrCat("1 to ", d.per_host, " (one host)");
      const std::string more =
          d.max_devices == d.per_host
              ? ""
              : absl::StrCat(one.empty() ? "" : ", or ",
                             d.per_host == 1 ? "1 to "
                                             : absl::StrCat("multiples of ", d.per_host, " up to "),
                             d.max_devices);
      return absl::InvalidArgumentError(
          absl::StrCat("machine preset ", name, ": ", devices, " devices; accepted: ", one, more));
    }
    const int per_host = std::min(devices, d.per_host);
    return absl::StrReplaceAll(d.text, {{"$HOSTS", absl::StrCat(devices / per_host)},
                                        {"$PER_HOST", absl::StrCat(per_host)}}) +
           "\n";
  }
  return absl::NotFoundError(absl::StrCat("machine preset \"",
                                          absl::Utf8SafeCHexEscape(name.substr(0, 80)),
                                          "\" is unknown; accepted: ", names));
}

absl::StatusOr<MachineModel> PresetMachine(const std::string& name, int devices) {
  const absl::StatusOr<std::string> text = PresetText(name, devices);
  if (!text.ok()) return text.status();
  return ReadMachine(*text);
}

}  // namespace espalier
