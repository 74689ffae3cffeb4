// Machines by name, of any size, for plans for hardware that is not here. They are written in the
// format of machine_file.h, so that one can be printed, changed and read back.
//
// Rates are what the data sheet says times a fraction that well-tuned libraries reach; each
// preset's description names both. Latencies are assumptions. Whoever has the machine should
// measure it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/machine/machine_file.h"

namespace espalier {

struct MachinePreset {
  std::string name;
  std::string summary;  // one line
  // Sizes: 1 to per_host devices (one host), or a multiple of per_host up to most_devices.
  int per_host = 1;
  int most_devices = 1;
};

// In the order of a menu.
std::vector<MachinePreset> MachinePresets();

// The preset with this many devices, as the text of a machine file. NotFound, with the names, for
// an unknown name; InvalidArgument for a size that it cannot have.
absl::StatusOr<std::string> PresetText(const std::string& name, int devices);

// The same, read.
absl::StatusOr<MachineModel> PresetMachine(const std::string& name, int devices);

}  // namespace espalier
