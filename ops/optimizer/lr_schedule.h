// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// Of the step that is about to run, counted from 0. The warm-up gives (step + 1) / warmup_steps of
// the peak. From its end on, s steps later, of n = total_steps - warmup_steps:
//   CONSTANT    peak
//   COSINE      floor + (peak - floor) * (1 + cos(pi * s / n)) / 2
//   STEP        peak * gamma^(s / step_size rounded down), at least floor
//   LINEAR      peak + (floor - peak) * s / n
//   POLYNOMIAL  floor + (peak - floor) * (1 - s / n)^power
// the last value of which holds beyond total_steps. ONE_CYCLE has no warm-up: by half cosines from
// `initial` up to peak at the step before rise * total_steps, then down to floor in the last step.
double LearningRate(const v1::LearningRateSchedule& schedule, int64_t step);

// InvalidArgument names the field, what was found and what is accepted.
absl::Status CheckSchedule(const v1::LearningRateSchedule& schedule);

}  // namespace espalier
