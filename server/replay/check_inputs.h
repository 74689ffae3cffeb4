// Whether what a run was trained with is still there.
#pragma once

#include "absl/status/status.h"
#include "espalier/v1/recording.pb.h"
#include "espalier/v1/training.pb.h"
#include "server/artifacts/artifact_store.h"
#include "storage/dataset_roots.h"

namespace espalier {

// FailedPrecondition, with the remedy, if an artifact that the run's job reads was deleted or
// replaced by other content, or a file is not there or not readable any more. Objects in S3 are not
// looked for, and files not read. `validates`: the validation dataset has to be what it was, too.
absl::Status CheckInputs(const ArtifactStore& artifacts, const DatasetRoots& roots,
                         const v1::Recording& recording, const v1::TrainingSpec& spec,
                         bool validates);

}  // namespace espalier
