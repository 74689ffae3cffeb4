// What is evaluated, when, and what follows from it: the held-out examples at the end of a job, and
// validation during training with early stopping.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/job_tokenizer.h"
#include "storage/dataset.h"
#include "storage/dataset_roots.h"

namespace espalier {

// Checks the fields of spec.validation and spec.early_stopping, each on its own. InvalidArgument
// names the field and what is accepted.
absl::Status CheckValidationFields(const v1::TrainingSpec& spec);

// The dataset of a spec that has one for validation, as it is opened: all examples held out, and
// what it leaves to TrainingSpec.dataset filled in.
v1::Dataset ValidationDataset(const v1::TrainingSpec& spec);

struct ValidationExamples {
  // Evaluated are its held-out examples: a dataset of its own, or that of training.
  std::shared_ptr<const Dataset> dataset;
  // Its tokens, if it is a text that was tokenized, for KeepTokens; else null.
  std::shared_ptr<const Dataset> tokens;
};

// Opens the dataset for validation, or returns `training`. Errors name the field.
absl::StatusOr<ValidationExamples> OpenValidation(const v1::TrainingSpec& spec,
                                                  const ArtifactStore& artifacts,
                                                  const DatasetRoots& roots,
                                                  const JobTokenizer& tokenizer,
                                                  std::shared_ptr<const Dataset> training);

// Returns spec.early_stopping with monitor and mode filled in. InvalidArgument for a monitor that
// is no reported value, listing those that are. `graph` is bound.
absl::StatusOr<v1::EarlyStopping> ResolveEarlyStopping(const OpRegistry& registry,
                                                       const Graph& graph,
                                                       const v1::TrainingSpec& spec);

// Steps between validations; 0: there are none.
int64_t ValidationPeriod(const v1::TrainingSpec& spec, int64_t steps_per_epoch);

}  // namespace espalier
