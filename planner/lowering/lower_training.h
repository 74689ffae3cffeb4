// Lowers a placement to training programs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/lowering/lower_session.h"
#include "planner/pcg/placement.h"
#include "planner/planner.h"

namespace espalier {

// What was done to make programs fit their devices.
struct MemoryFit {
  int batch_tiles = 1;
  std::vector<v1::MemoryPlan> memory;  // by device
  // By device: bytes needed without any of it. Also set if nothing makes it fit; 0 if there is no
  // limit.
  std::vector<int64_t> bytes_without;
  std::vector<int64_t> workspace;  // by device: of its kernels; 0: none or not known
};

// Estimates the number of instructions of all programs of a placement; the time to write them is
// proportional to it.
double EstimateInstructions(const PcgStructure& structure, const Placement& placement);
// The estimate for training with `parts` operator parts per micro-batch.
double EstimateInstructions(double parts, int micro_batches);

// The most instructions that LowerPlan writes: they are gigabytes, which the coordinator holds in
// memory.
inline constexpr double kMaxInstructions = 2e7;

// Returns one program per device; forward only if structure.forward_only. `kept_bytes`, by device:
// in, the bytes to leave free at the start of each arena (empty: none); out, the bytes that the
// programs keep there. With `limits`, programs that are too large are rewritten
// (offload_recompute_pass.h), with as few batch tiles as suffice, at least `min_tiles`
// (emit_batch_tiles.cc); kernels' workspace counts where options.workspace knows it, of
// limits->devices. `made`, if not null, gets what was done. With `borders`, training programs
// are those of a session, and it gets their borders. Returns ResourceExhausted if a program cannot
// be made to fit.
absl::StatusOr<std::vector<v1::Program>> LowerPlacement(
    const PcgStructure& structure, const Placement& placement, ConfigTable& table, int num_devices,
    const LoweringOptions& options, std::vector<int64_t>* kept_bytes,
    const MemoryLimits* limits = nullptr, MemoryFit* made = nullptr, int min_tiles = 1,
    std::vector<PassBorders>* borders = nullptr);

}  // namespace espalier
