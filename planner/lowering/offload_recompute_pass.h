// Makes one device's program fit its memory: swaps and recomputation by planner/memory/offload_recompute.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "planner/lowering/rank_program.h"
#include "planner/memory/offload_recompute.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// InvalidArgument names the field and what it may be.
absl::Status CheckBatchTiles(int tiles, const std::string& field);
absl::StatusOr<OffloadSettings> OffloadSettingsOf(const v1::MemoryOptions& options);

struct OffloadRequest {
  int64_t limit = 0;           // bytes of the device
  int64_t workspace = 0;       // to keep free of them, if anything is rewritten
  int64_t reserved_bytes = 0;  // as for RankProgram::Finish
  OffloadSettings settings;
  std::function<double(const v1::Instruction&)> seconds;  // predicted
};

// Rewrites a program, which is otherwise complete, where its arena would be larger than the limit.
// ResourceExhausted, with the operator and the bytes, where that is not enough: the program is then
// as it was.
absl::StatusOr<v1::MemoryPlan> RunOffloadPass(const OffloadRequest& request,
                                                 RankProgram* program);

}  // namespace espalier
