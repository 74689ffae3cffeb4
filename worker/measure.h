// Measures programs on a device, for the planner's cost model.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "worker/device/device.h"

namespace espalier {

// Returns the median seconds of `repetitions` (at least 1) runs, after a warm-up run.
// Floating-point inputs are small random numbers, others zero. Cache state is as in a step: SCRATCH
// inputs have just been written, all else is evicted.
absl::StatusOr<double> MeasureProgram(const v1::Program& program, int repetitions, Device* device);

// Returns the device's description with measured rates: matmul FLOP/s, memory bandwidth, launch
// overhead. Takes about 1.5 s at most.
absl::StatusOr<v1::Device> Calibrate(Device* device);

}  // namespace espalier
