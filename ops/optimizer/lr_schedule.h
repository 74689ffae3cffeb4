// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// Returns the learning rate of a step, counted from 0. During the warm-up it is
// (step + 1) / warmup_steps of the peak; with warmup_from = w it is
// w + (peak - w) * step / warmup_steps. s steps after the warm-up, n = total_steps - warmup_steps:
//   CONSTANT    peak
//   COSINE      floor + (peak - floor) * (1 + cos(pi * s / n)) / 2
//   STEP        peak * gamma^(s / step_size rounded down), at least floor
//   LINEAR      peak + (floor - peak) * s / n
//   POLYNOMIAL  floor + (peak - floor) * (1 - s / n)^power
// Beyond total_steps the last value holds. ONE_CYCLE has no warm-up: it follows half cosines from
// `initial` up to peak at the step before rise * total_steps, then down to floor in the last step.
// TABLE has no warm-up either: it is values[step], and after the end the last of them.
double LearningRate(const v1::LearningRateSchedule& schedule, int64_t step);

// Returns InvalidArgument that names the field, its value and what is accepted.
absl::Status CheckSchedule(const v1::LearningRateSchedule& schedule);

}  // namespace espalier
