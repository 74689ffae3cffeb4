// Flags of training and of the search for a plan, as FlexFlow names them where it has them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// --batch-size and the search: shared by train and plan.
std::vector<FlagSpec> SearchFlags();
// A plan as --export-strategy writes it. Usage errors name the file.
absl::StatusOr<v1::Plan> ReadPlan(const std::string& path);
absl::StatusOr<v1::SearchOptions> MakeSearch(const ParsedFlags& flags);
constexpr int64_t kDefaultBatchSize = 16;

FlagSpec PrecisionFlag();
// DATA_TYPE_UNSPECIFIED where the flag is not given.
absl::StatusOr<v1::DataType> ChoosePrecision(const ParsedFlags& flags);

// The update, its learning rate over the steps, clipping and penalties.
std::vector<FlagSpec> OptimizerFlags();
// `steps` of the run; 0: not known.
absl::Status FillOptimizer(const ParsedFlags& flags, int64_t steps, v1::Optimizer* optimizer);

// OptimizerFlags and everything else about a run but the model and the dataset's bytes.
std::vector<FlagSpec> TrainingFlags();
// Fills in all fields but model, dataset.uri and dataset.format. `steps` or `epochs` is set, not
// both.
absl::Status FillTraining(const ParsedFlags& flags, v1::TrainingSpec* spec);

// TEXT or NPZ by the ending of the name, unless --dataset-format says it.
absl::StatusOr<v1::Dataset::Format> DatasetFormat(const ParsedFlags& flags,
                                                     const std::string& path);

}  // namespace espalier
