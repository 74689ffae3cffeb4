// Whether what a run was trained with is still there.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "espalier/v1/training.pb.h"
#include "server/artifacts/artifact_store.h"
#include "storage/dataset_roots.h"

namespace espalier {

// FailedPrecondition, with the remedy, if an artifact that the run's job reads was deleted, or a
// file is not there or not readable any more. Objects in S3 are not looked for. `run`: "lm@3".
absl::Status CheckInputs(const ArtifactStore& artifacts, const DatasetRoots& roots,
                         const std::string& run, const v1::TrainingSpec& spec);

}  // namespace espalier
