// Computes a served graph on a device of this process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/inference/prediction/batch_runner.h"
#include "server/inference/prediction/prediction_graph.h"
#include "worker/device/device.h"

namespace espalier {

// Makes programs for batches of 1, 2, 4, ... up to `max_batch` examples, which share parameters and
// memory; a pass runs the smallest that holds it, filled with copies of its first example. Of a
// graph with a fixed batch size, that one alone. Reads the parameters from the model folder
// `folder`. Returns ResourceExhausted, with byte counts, if they do not fit the device; NotFound or
// InvalidArgument naming a tensor that is missing or has another shape.
absl::StatusOr<std::unique_ptr<BatchRunner>> MakeGraphRunner(const OpRegistry& registry,
                                                             const PredictionGraph& prediction,
                                                             const std::string& folder,
                                                             int64_t max_batch,
                                                             std::unique_ptr<Device> device);

}  // namespace espalier
