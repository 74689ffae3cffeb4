// The training programs of a placement.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pcg/placement.h"
#include "planner/planner.h"

namespace espalier {

// One program per device; forward only if structure.forward_only. `kept_bytes`, by device: in, what
// to leave free at the start of each arena (empty: nothing); out, what the programs keep there.
// With `limits` programs that are too large are rewritten (offload_program.h), which
// `memory_plans`, by device, says, if it is not null; ResourceExhausted if one cannot be made to
// fit.
absl::StatusOr<std::vector<proto::Program>> LowerPlacement(
    const PcgStructure& structure, const Placement& placement, ConfigTable& table, int num_devices,
    const LoweringOptions& options, std::vector<int64_t>* kept_bytes,
    const MemoryLimits* limits = nullptr, std::vector<proto::MemoryPlan>* memory_plans = nullptr);

}  // namespace espalier
