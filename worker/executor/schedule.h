// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/program.pb.h"

namespace espalier {

// Of the step that is about to run, counted from 0. COSINE: (step + 1) / warmup_steps of the peak
// while step < warmup_steps, then floor + (peak - floor) * (1 + cos(pi * t)) / 2 with t running
// from 0 to 1 between the end of the warm-up and total_steps; the floor from there on.
double LearningRate(const proto::LearningRateSchedule& schedule, int64_t step);

// InvalidArgument names the field. Covers the optimiser's own numbers too.
absl::Status CheckOptimizer(const proto::Optimizer& optimizer);

}  // namespace espalier
