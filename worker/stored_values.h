// Reads the values of a training program that are not in it: initial parameters and constants too
// large for a message.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "storage/object_reader.h"
#include "worker/executor/executor.h"

namespace espalier {

// Fills every literal of `executor` whose initializer is STORED, and if `parameters` also every
// such parameter, from `folder`, which has the format of checkpoints. Reads this rank's regions
// only, in parts of about 16 MiB. Does nothing if there is no such buffer. Returns InvalidArgument
// naming a buffer if `folder` is empty; NotFound or InvalidArgument naming a tensor that is missing
// or has another type or shape; DataLoss if a file is damaged; Cancelled once `cancelled`, if
// given, returns true.
absl::Status LoadStoredValues(ObjectReader& store, const std::string& folder, bool parameters,
                              const std::function<bool()>& cancelled, Executor& executor);

}  // namespace espalier
