// The training programs of a placement, without any check of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pcg/placement.h"
#include "planner/planner.h"

namespace espalier {

// One program per device; forward only if structure.forward_only. `kept_bytes`, by device: in, what
// to leave free at the start of each arena (empty: nothing); out, what the programs keep there.
absl::StatusOr<std::vector<proto::Program>> LowerPlacement(const PcgStructure& structure,
                                                           const Placement& placement,
                                                           ConfigTable& table, int num_devices,
                                                           const LoweringOptions& options,
                                                           std::vector<int64_t>* kept_bytes);

}  // namespace espalier
