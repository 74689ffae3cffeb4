// Rewrites one device's program to fit its memory, by swaps and recomputation (activation
// checkpointing) as planned by planner/memory/offload_recompute.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "planner/lowering/rank_program.h"
#include "planner/memory/offload_recompute.h"

namespace espalier {

// Both return InvalidArgument, with the field and its legal values.
absl::Status CheckBatchTiles(int tiles, const std::string& field);
absl::StatusOr<OffloadSettings> OffloadSettingsOf(const v1::MemoryOptions& options);

struct OffloadRequest {
  int64_t limit = 0;  // bytes of the device
  // Of them for kernels' workspace. If it is only an estimate, a program that fits without it is
  // not rewritten.
  int64_t workspace = 0;
  bool workspace_known = false;
  int64_t reserved_bytes = 0;  // as in RankProgram::Finish
  OffloadSettings settings;
  std::function<double(const v1::Instruction&)> seconds;  // predicted
};

// Rewrites a complete program whose arena would exceed the limit. Returns ResourceExhausted, with
// the operator and the bytes, if that is not enough; the program is then unchanged.
absl::StatusOr<v1::MemoryPlan> RunOffloadPass(const OffloadRequest& request, RankProgram* program);

}  // namespace espalier
