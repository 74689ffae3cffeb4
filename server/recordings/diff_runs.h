// How two runs differ: what they were asked to do, what they did it with, and their losses. Pure.
#pragma once

#include <string>
#include <vector>

#include "espalier/v1/recording.pb.h"
#include "server/recordings/recorded_losses.h"

namespace espalier {

// Equal for plans whose steps have the same bits: a number of operators and devices, and a hash.
std::string DescribePlan(const v1::Plan& plan);

struct ComparedRun {
  const v1::Recording& recording;  // without checkpoints
  const std::vector<RecordedLoss>& losses;
};

// Compares specifications field by field, but models and data by their hashes; then each attempt's
// plan, program version and devices; then the losses to the bit, of which the first that differs is
// named.
v1::DiffRunsReply DiffRuns(const ComparedRun& a, const ComparedRun& b);

}  // namespace espalier
