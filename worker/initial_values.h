// Fills the buffers of a training rank before its first step.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "espalier/v1/worker.pb.h"
#include "worker/executor/executor.h"
#include "worker/storage/job_storage.h"

namespace espalier {

// Reads stored literals, and unless the request names a checkpoint, which the caller reads, the
// initial parameters: those of init_folder, or else of values_folder. `evaluation` may be null.
// Errors as LoadStoredValues and LoadWeights.
absl::Status LoadInitialValues(JobStorage& storage, const v1::LoadProgramRequest& request,
                               const std::function<bool()>& cancelled, Executor& training,
                               Executor* evaluation);

}  // namespace espalier
