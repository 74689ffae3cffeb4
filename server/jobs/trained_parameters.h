// Chooses which parameters a job trains: TrainingSpec.freeze and train_only.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "ops/graph/graph.h"
#include "ops/onnx/import.h"

namespace espalier {

// The entries of spec.train_only that are names: ImportOptions.parameters.
std::set<std::string> NamedForTraining(const v1::TrainingSpec& spec);

// Sets Value::trainable of the parameters, but not of running statistics. `report` is that of the
// ONNX import, or empty. Returns what was decided for all parameters and initializers, sorted by
// name. InvalidArgument names a pattern that matches none of them, and says so if nothing is left
// to train.
absl::StatusOr<std::vector<v1::ParameterUse>> ChooseTrained(const v1::TrainingSpec& spec,
                                                            const ImportReport& report,
                                                            Graph* graph);

// Returns a note that names what was inferred from little evidence and not decided by the spec;
// empty if there is none.
std::string DoubtsOf(const std::vector<v1::ParameterUse>& uses, const ImportReport& report);

v1::TrainedParameters CountTrained(const std::vector<v1::ParameterUse>& uses);

}  // namespace espalier
