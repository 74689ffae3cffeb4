// Flags of training and of the plan search, named as in FlexFlow where it has them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// --batch-size and search flags, shared by train and plan.
std::vector<FlagSpec> SearchFlags();
// Reads a plan written by --export-strategy. Usage errors name the file.
absl::StatusOr<v1::Plan> ReadPlan(const std::string& path);
absl::StatusOr<v1::SearchOptions> MakeSearch(const ParsedFlags& flags);
constexpr int64_t kDefaultBatchSize = 16;

FlagSpec PrecisionFlag();
// Returns DATA_TYPE_UNSPECIFIED if the flag is not given.
absl::StatusOr<v1::DataType> ChoosePrecision(const ParsedFlags& flags);

// The optimizer, its learning-rate schedule, clipping and penalties.
std::vector<FlagSpec> OptimizerFlags();
// `steps`: of the run; 0: unknown.
absl::Status FillOptimizer(const ParsedFlags& flags, int64_t steps, v1::Optimizer* optimizer);

// OptimizerFlags and all other flags of a run except the model and the dataset's content.
std::vector<FlagSpec> TrainingFlags();
// Fills in all fields except model, dataset.uri and dataset.format. Sets either `steps` or
// `epochs`.
absl::Status FillTraining(const ParsedFlags& flags, v1::TrainingSpec* spec);

// Returns --dataset-format, or TEXT or NPZ by the file's extension.
absl::StatusOr<v1::Dataset::Format> DatasetFormat(const ParsedFlags& flags,
                                                  const std::string& path);

}  // namespace espalier
