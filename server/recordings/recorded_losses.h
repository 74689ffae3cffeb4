// The losses of a job's steps, from its log: as they were, to the bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/recording.pb.h"
#include "server/store/job_store.h"

namespace espalier {

// The name of the loss among a step's values.
inline constexpr char kLossValue[] = "loss";

struct RecordedLoss {
  int64_t step = 0;
  double loss = 0;
};

// Returns those of steps from `first_step` on, in ascending order. Steps without a loss are left
// out.
absl::StatusOr<std::vector<RecordedLoss>> ReadLosses(const JobStore& jobs,
                                                     const std::string& job_id,
                                                     int64_t first_step = 0);

// REQUIRES: there are any. Of equal ones, the first is the best; NaN is never the best, unless all
// are.
v1::LossSummary SummarizeLosses(const std::vector<RecordedLoss>& losses);

// Whether both are the same bits.
bool SameBits(double a, double b);

}  // namespace espalier
