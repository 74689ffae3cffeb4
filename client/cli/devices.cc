#include "client/cli/devices.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

struct DevicePreset {
  const char* name;
  v1::Device::Kind kind;
  const char* model;
  double memory_gib;
  double
      // f32 (TF32 on NVIDIA), measured on large matrix products, not the data sheet's value
      matmul_flops;
  double memory_bandwidth;  // bytes/s
  double op_overhead;       // seconds
  double link_bandwidth;    // bytes/s to a neighbor: NVLink, or loopback for CPUs
  double link_latency;
};

constexpr DevicePreset kPresets[] = {
    {"cpu-core", v1::Device::CPU, "one CPU core with AVX-512", 8, 60e9, 8e9, 5e-6, 1.5e9, 60e-6},
    {"cpu-16", v1::Device::CPU, "16 CPU cores with AVX-512", 64, 1e12, 80e9, 1e-5, 3e9, 40e-6},
    {"a100", v1::Device::CUDA, "NVIDIA A100 80 GB", 76, 110e12, 1.7e12, 4e-6, 250e9, 8e-6},
    {"h100", v1::Device::CUDA, "NVIDIA H100 SXM", 76, 350e12, 2.9e12, 4e-6, 380e9, 8e-6},
    {"h200", v1::Device::CUDA, "NVIDIA H200", 136, 350e12, 4.2e12, 4e-6, 380e9, 8e-6},
};

std::string Names() {
  return absl::StrJoin(kPresets, ", ",
                       [](std::string* out, const DevicePreset& p) { out->append(p.name); });
}

}  // namespace

std::vector<FlagSpec> DeviceFlags() {
  return {
      {"devices", FlagType::kInt, "N", "plan for N hypothetical devices", 0, 1, 4096},
      {"machine", FlagType::kText, "NAME",
       "plan for this machine (listed by espalier machines), --devices of it"},
      {"machine-model-file", FlagType::kText, "FILE",
       "plan for the machine that this file describes"},
      {"search-num-nodes", FlagType::kInt, "N",
       "with --machine: number of hosts, instead of "
       "--devices",
       0, 1, 4096},
      {"search-num-workers", FlagType::kInt, "N", "with --machine: devices per host (all)", 0, 1,
       4096},
      {"device-preset", FlagType::kText, "NAME", "what they are: " + Names() + " (cpu-core)"},
      {"device-memory", FlagType::kNumber, "GIB", "memory per device", 0, 0.001},
      {"link-bandwidth", FlagType::kNumber, "GBPS",
       "bandwidth between two devices, gigabytes per "
       "second",
       0, 1e-4},
      {"link-latency", FlagType::kNumber, "US", "latency between two devices, microseconds", 0, 0,
       1e7},
      {"profile", FlagType::kText, "FILE",
       "measurements of another cluster (espalier profile export); take precedence over local "
       "ones"},
  };
}

namespace {

// Fills in a machine with a topology; returns true if one was named.
absl::StatusOr<bool> FillMachine(const ParsedFlags& flags, v1::PlanRequest* request) {
  const bool preset = flags.Has("machine"), file = flags.Has("machine-model-file");
  for (const char* needs : {"search-num-nodes", "search-num-workers"}) {
    if (flags.Has(needs) && !preset) {
      return UsageError(absl::StrCat("--", needs, " needs --machine=NAME"));
    }
  }
  if (!preset && !file) return false;
  for (const char* other : {"device-preset", "device-memory", "link-bandwidth", "link-latency"}) {
    if (flags.Has(other)) {
      return UsageError(absl::StrCat("--", other,
                                     " applies only with --devices; a machine model defines its "
                                     "own"));
    }
  }
  if (preset && file) return UsageError("give --machine or --machine-model-file, not both");
  if (file) {
    if (flags.Has("devices")) {
      return UsageError("--machine-model-file says how many devices there are; use --max-devices");
    }
    absl::StatusOr<std::string> text = ReadNonemptyFile(flags.Text("machine-model-file"));
    if (!text.ok()) return text.status();
    request->set_machine_file(*std::move(text));
    return true;
  }
  int64_t devices = flags.Int("devices", 8);
  if (flags.Has("search-num-nodes") || flags.Has("search-num-workers")) {
    if (flags.Has("devices")) {
      return UsageError("give --devices or --search-num-nodes, not both");
    }
    devices = flags.Int("search-num-nodes", 1) * flags.Int("search-num-workers", 8);
  }
  request->set_machine_preset(flags.Text("machine"));
  request->set_machine_devices(static_cast<int32_t>(devices));
  return true;
}

}  // namespace

absl::Status FillDevices(const ParsedFlags& flags, v1::PlanRequest* request) {
  if (const std::string path = flags.Text("profile"); !path.empty()) {
    absl::StatusOr<std::string> text = ReadNonemptyFile(path);
    if (!text.ok()) return text.status();
    request->set_profile(*std::move(text));
  }
  absl::StatusOr<bool> machine = FillMachine(flags, request);
  if (!machine.ok()) return machine.status();
  if (*machine) return absl::OkStatus();
  if (!flags.Has("devices")) {
    for (const char* needs : {"device-preset", "device-memory", "link-bandwidth", "link-latency"}) {
      if (flags.Has(needs)) return UsageError(absl::StrCat("--", needs, " needs --devices=N"));
    }
    return absl::OkStatus();
  }
  const std::string name = flags.Text("device-preset", "cpu-core");
  const DevicePreset* preset = nullptr;
  for (const DevicePreset& p : kPresets) {
    if (name == p.name) preset = &p;
  }
  if (preset == nullptr) {
    return UsageError(
        absl::StrCat("--device-preset is \"", Printable(name), "\"; accepted: ", Names()));
  }
  v1::Device device;
  device.set_kind(preset->kind);
  device.set_model(preset->model);
  device.set_memory_bytes(
      static_cast<int64_t>(flags.Number("device-memory", preset->memory_gib) * 1024 * 1024 * 1024));
  device.set_matmul_flops(preset->matmul_flops);
  device.set_memory_bandwidth(preset->memory_bandwidth);
  device.set_op_overhead_seconds(preset->op_overhead);
  device.set_threads(preset->kind == v1::Device::CPU ? 1 : 0);
  for (int64_t i = 0; i < flags.Int("devices", 0); ++i) *request->add_devices() = device;
  request->mutable_link()->set_bandwidth(
      flags.Number("link-bandwidth", preset->link_bandwidth / 1e9) * 1e9);
  request->mutable_link()->set_latency_seconds(
      flags.Number("link-latency", preset->link_latency * 1e6) / 1e6);
  return absl::OkStatus();
}

}  // namespace espalier
