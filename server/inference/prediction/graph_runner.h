// Computes a served graph on a device of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/initial_value.h"
#include "server/inference/prediction/batch_runner.h"
#include "server/inference/prediction/prediction_graph.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

namespace espalier {

// Writes all parameters into the buffers of their names. An executor need not have them all.
using ParameterReader = std::function<absl::Status(Executor& executor)>;

// Reads them from a model folder. NotFound or InvalidArgument naming a tensor that is missing or
// has another shape.
ParameterReader ParametersOfFolder(std::string folder);
// Errors as of reading the values.
ParameterReader ParametersOfValues(std::vector<InitialValue> values);

// Makes programs for batches of 1, 2, 4, ... up to `max_batch` examples, which share parameters and
// memory; a pass runs the smallest that holds it, filled with copies of its first example. Of a
// graph with a fixed batch size, that one alone. Returns ResourceExhausted, with byte counts, if
// they do not fit the device; InvalidArgument naming what depends on the other examples of a batch,
// unless max_batch is 1; and what `read` returns.
absl::StatusOr<std::unique_ptr<BatchRunner>> MakeGraphRunner(const OpRegistry& registry,
                                                             const PredictionGraph& prediction,
                                                             const ParameterReader& read,
                                                             int64_t max_batch,
                                                             std::unique_ptr<Device> device);

}  // namespace espalier
