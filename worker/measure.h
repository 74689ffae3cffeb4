// Times programs on a device, for the planner's cost model.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "worker/device/device.h"

namespace espalier {

// Median seconds of one run over `repetitions` (at least 1), after one that is not counted.
// Floating inputs hold small random numbers, others zero. Caches are as in a step: inputs that are
// SCRATCH have just been written, all else has been evicted.
absl::StatusOr<double> MeasureProgram(const v1::Program& program, int repetitions,
                                      Device* device);

// `description` of the device with its rates: matmul FLOP/s, memory bandwidth, cost of starting an
// operator. Takes at most about 1.5 s.
absl::StatusOr<v1::Device> Calibrate(Device* device);

}  // namespace espalier
