// What a job's Optimizer message stands for: the update operator of that name, as the operators'
// registry has it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/schema/registry.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

struct UpdateChoice {
  const OpDef* def = nullptr;  // "adam_update"; its `update` is there
  const Update::Variant* variant = nullptr;
  Attributes attributes;  // complete

  std::vector<Update::State> States(const Dims& parameter) const {
    return def->update->states(attributes, parameter);
  }
  // Types of the update's inputs for a parameter, without the sums; no scale.
  std::vector<TensorType> InputTypes(const Dims& parameter) const;
  // Types of its sums, or the error of the first operator that refuses the parameter.
  absl::StatusOr<std::vector<TensorType>> SumTypes(const OpRegistry& registry,
                                                   const Dims& parameter) const;
};

// The update operator with all its attributes. InvalidArgument for an unknown name, an attribute
// that the operator does not have, or a value that it refuses.
absl::StatusOr<UpdateChoice> ChooseUpdate(const OpRegistry& registry,
                                          const v1::Optimizer& optimizer);

// All names, sorted, with the operator and the variant of each.
struct NamedUpdate {
  const OpDef* def;
  const Update::Variant* variant;
};
std::vector<NamedUpdate> AllUpdates(const OpRegistry& registry);

// The update, the schedule, the clipping and the regularisers. Errors name the field.
absl::Status CheckOptimizer(const OpRegistry& registry, const v1::Optimizer& optimizer);

// Dynamic loss scaling as the operator's defaults have it, where `scale` says nothing.
void CompleteLossScale(const OpRegistry& registry, v1::LossScale* scale);

// Whether `regularizer` is meant for `parameter`.
bool Applies(const v1::Regularizer& regularizer, const std::string& parameter);

// What the regularisers that name `parameter` come to; both zero: none does.
struct Penalty {
  double l1 = 0;
  double l2 = 0;
};
Penalty PenaltyOf(const v1::Optimizer& optimizer, const std::string& parameter);

}  // namespace espalier
