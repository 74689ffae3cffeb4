// Whether what a run was trained with is still there.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "espalier/v1/training.pb.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

// FailedPrecondition, with the remedy, if an artifact that the run's job reads was deleted. `run`:
// "lm@3".
absl::Status CheckInputs(const ArtifactStore& artifacts, const std::string& run,
                         const v1::TrainingSpec& spec);

}  // namespace espalier
