// Named machines of any size, for planning on hardware that is not available. They are machine
// files (machine_file.h), so one can be printed, edited and read back.
//
// Rates are data-sheet values times the fraction that well-tuned libraries reach; each preset's
// description states both. Latencies are assumptions: measure them on the real machine.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/machine/machine_file.h"

namespace espalier {

struct MachinePreset {
  std::string name;
  std::string summary;  // one line
  // Legal sizes: 1 to per_host devices (one host), or a multiple of per_host up to max_devices.
  int per_host = 1;
  int max_devices = 1;
};

// In display order.
std::vector<MachinePreset> MachinePresets();

// Returns the preset with this many devices as the text of a machine file. Returns NotFound, with
// the known names, for an unknown name; InvalidArgument for an illegal size.
absl::StatusOr<std::string> PresetText(const std::string& name, int devices);

// Like PresetText, parsed.
absl::StatusOr<MachineModel> PresetMachine(const std::string& name, int devices);

}  // namespace espalier
