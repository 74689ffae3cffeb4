// Flags of training, named as in FlexFlow where it has them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

FlagSpec PrecisionFlag();
// Returns DATA_TYPE_UNSPECIFIED if the flag is not given.
absl::StatusOr<v1::DataType> ChoosePrecision(const ParsedFlags& flags);

// OptimizerFlags and all other flags of a run except the model and the dataset's content.
std::vector<FlagSpec> TrainingFlags();
// Fills in all fields except model, dataset.uri, dataset.format and validation.dataset. Sets either
// `steps` or `epochs`.
absl::Status FillTraining(const ParsedFlags& flags, v1::TrainingSpec* spec);

// Returns --dataset-format, or TEXT or NPZ by the file's extension.
absl::StatusOr<v1::Dataset::Format> DatasetFormat(const ParsedFlags& flags,
                                                  const std::string& path);

}  // namespace espalier
