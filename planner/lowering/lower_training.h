// The training programs of a placement.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pcg/placement.h"
#include "planner/planner.h"

namespace espalier {

// What it took to make programs fit.
struct MemoryFit {
  int batch_tiles = 1;
  std::vector<v1::MemoryPlan> memory;  // by device
  // By device, without any of it: what does not fit. Also set where nothing makes it fit; 0 where
  // there is no limit.
  std::vector<int64_t> bytes_without;
};

// About how many instructions all programs of a placement have together: what writing them takes
// grows with it.
double EstimateInstructions(const PcgStructure& structure, const Placement& placement);
// The same of training with so many parts of operators, which each micro-batch goes through.
double EstimateInstructions(double parts, int micro_batches);

// LowerPlan writes no more than so many: they are gigabytes, which the coordinator holds at once.
inline constexpr double kMaxInstructions = 2e7;

// One program per device; forward only if structure.forward_only. `kept_bytes`, by device: in, what
// to leave free at the start of each arena (empty: nothing); out, what the programs keep there.
// With `limits` programs that are too large are rewritten (offload_recompute_pass.h), as they are or in
// tiles (emit_batch_tiles.cc), at least `min_tiles` and the fewest that do, which `made` says, if it
// is not null; ResourceExhausted if one cannot be made to fit.
absl::StatusOr<std::vector<v1::Program>> LowerPlacement(
    const PcgStructure& structure, const Placement& placement, ConfigTable& table, int num_devices,
    const LoweringOptions& options, std::vector<int64_t>* kept_bytes,
    const MemoryLimits* limits = nullptr, MemoryFit* made = nullptr, int min_tiles = 1);

}  // namespace espalier
