// Resolves a job's Optimizer message to the update operator of that name in the registry.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "ops/graph/graph.h"
#include "ops/schema/registry.h"

namespace espalier {

struct UpdateChoice {
  const OpDef* def = nullptr;  // "adam_update"; REQUIRES: it has `update`
  const Update::Variant* variant = nullptr;
  Attributes attributes;  // with defaults filled in

  std::vector<Update::State> States(const Dims& parameter) const {
    return def->update->states(attributes, parameter);
  }
  // Types of the update's inputs for a parameter, without the sums and the scale.
  std::vector<TensorType> InputTypes(const Dims& parameter) const;
  // Types of its sums, or the error of the first operator that refuses the parameter.
  absl::StatusOr<std::vector<TensorType>> SumTypes(const OpRegistry& registry,
                                                   const Dims& parameter) const;
};

// Returns the update operator with all attributes. Returns InvalidArgument for an unknown name, an
// unknown attribute, or a value that the operator refuses.
absl::StatusOr<UpdateChoice> ChooseUpdate(const OpRegistry& registry,
                                          const v1::Optimizer& optimizer);

// All names, sorted, with operator and variant.
struct NamedUpdate {
  const OpDef* def;
  const Update::Variant* variant;
};
std::vector<NamedUpdate> AllUpdates(const OpRegistry& registry);

// Checks update, schedule, clipping and regularizers. Errors name the field.
absl::Status CheckOptimizer(const OpRegistry& registry, const v1::Optimizer& optimizer);

// Fills unset fields of `scale` with the operator's defaults for dynamic loss scaling.
void CompleteLossScale(const OpRegistry& registry, v1::LossScale* scale);

// Whether `regularizer` applies to `parameter`.
bool Applies(const v1::Regularizer& regularizer, const std::string& parameter);

// The sum of the regularizers that apply to `parameter`; zero if none does.
struct Penalty {
  double l1 = 0;
  double l2 = 0;
};
Penalty PenaltyOf(const v1::Optimizer& optimizer, const std::string& parameter);

// The first group that names `parameter`, counted from 0; -1 if none does.
int GroupOf(const v1::Optimizer& optimizer, const std::string& parameter);

// What multiplies the schedule's learning rate for `parameter`.
double LearningRateScale(const v1::Optimizer& optimizer, const std::string& parameter);

// The attributes of the update of `parameter`.
Attributes UpdateAttributes(const UpdateChoice& choice, const v1::Optimizer& optimizer,
                            const std::string& parameter);

// Returns InvalidArgument if a pattern of optimizer.groups matches no trained parameter of the
// graph.
absl::Status CheckGroups(const Graph& graph, const v1::Optimizer& optimizer);

}  // namespace espalier
