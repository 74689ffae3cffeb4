#include "ops/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ops/graph/graph_proto.h"
#include "ops/optimizer/lr_schedule.h"

namespace espalier {
namespace {

absl::Status BadOptimizer(const std::string& field, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer.", field, " ", problem));
}

// Runs the operator's checks on a small parameter, which fills in the attributes.
absl::Status CheckAttributes(const OpRegistry& registry, UpdateChoice* choice) {
  // The states may depend on default attributes.
  for (const AttributeSpec& spec : choice->def->attributes) {
    if (spec.default_value.has_value() && !choice->attributes.Has(spec.name)) {
      choice->attributes.Set(spec.name, *spec.default_value);
    }
  }
  const Dims parameter = {2, 2};
  NodeTypes types{choice->attributes, choice->InputTypes(parameter), {}};
  absl::StatusOr<std::vector<TensorType>> sums = choice->SumTypes(registry, parameter);
  if (!sums.ok()) return sums.status();
  types.inputs.insert(types.inputs.end(), sums->begin(), sums->end());
  if (absl::Status s = InferNode(*choice->def, &types); !s.ok()) return s;
  choice->attributes = types.attributes;
  return absl::OkStatus();
}

}  // namespace

std::vector<TensorType> UpdateChoice::InputTypes(const Dims& parameter) const {
  const TensorType type{DType::kF32, parameter};
  std::vector<TensorType> inputs = {type, type, TensorType{}, {DType::kF32, {2}}};
  for (const Update::State& state : States(parameter)) {
    inputs.push_back(state.name.empty() ? TensorType{}
                                        : TensorType{DType::kF32, state.dims.value_or(parameter)});
  }
  return inputs;
}

absl::StatusOr<std::vector<TensorType>> UpdateChoice::SumTypes(const OpRegistry& registry,
                                                               const Dims& parameter) const {
  std::vector<TensorType> sums;
  for (const std::string& op : def->update->sums) {
    NodeTypes types{attributes, InputTypes(parameter), {}};
    types.inputs.insert(types.inputs.end(), sums.begin(), sums.end());
    if (absl::Status s = InferNode(*registry.Find(op), &types); !s.ok()) return s;
    sums.push_back(types.outputs[0]);
  }
  return sums;
}

std::vector<NamedUpdate> AllUpdates(const OpRegistry& registry) {
  std::vector<NamedUpdate> all;
  for (const OpDef* def : registry.All()) {
    if (!def->update.has_value()) continue;
    for (const Update::Variant& variant : def->update->variants) all.push_back({def, &variant});
  }
  std::sort(all.begin(), all.end(), [](const NamedUpdate& a, const NamedUpdate& b) {
    return a.variant->name < b.variant->name;
  });
  return all;
}

absl::StatusOr<UpdateChoice> ChooseUpdate(const OpRegistry& registry,
                                          const v1::Optimizer& optimizer) {
  const std::vector<NamedUpdate> all = AllUpdates(registry);
  const auto found = std::find_if(all.begin(), all.end(), [&](const NamedUpdate& update) {
    return update.variant->name == optimizer.name();
  });
  if (found == all.end()) {
    return BadOptimizer("name",
                        absl::StrCat("is '", optimizer.name().substr(0, 100), "'; accepted: ",
                                     absl::StrJoin(all, ", ", [](std::string* out, const auto& u) {
                                       absl::StrAppend(out, u.variant->name);
                                     })));
  }
  UpdateChoice choice{found->def, found->variant, found->variant->attributes};
  absl::StatusOr<Attributes> given = AttributesFromProto(optimizer.attributes());
  if (!given.ok()) return BadOptimizer("attributes", absl::StrCat(": ", given.status().message()));
  for (const auto& [name, value] : given->values()) choice.attributes.Set(name, value);
  if (absl::Status s = CheckAttributes(registry, &choice); !s.ok()) {
    return BadOptimizer("attributes",
                        absl::StrCat("of '", optimizer.name(), "': ", std::string(s.message())));
  }
  return choice;
}

absl::Status CheckOptimizer(const OpRegistry& registry, const v1::Optimizer& optimizer) {
  if (auto choice = ChooseUpdate(registry, optimizer); !choice.ok()) return choice.status();
  if (absl::Status s = CheckSchedule(optimizer.learning_rate()); !s.ok()) return s;
  if (!std::isfinite(optimizer.clip_norm()) || optimizer.clip_norm() < 0) {
    return BadOptimizer("clip_norm",
                        absl::StrCat("is ", optimizer.clip_norm(), "; accepted: 0 (off) or more"));
  }
  if (optimizer.has_loss_scale()) {
    const v1::LossScale& scale = optimizer.loss_scale();
    int exponent = 0;
    const bool given = scale.initial() != 0;
    if (given && (!(scale.initial() >= 0x1p-24 && scale.initial() <= 0x1p100) ||
                  std::frexp(scale.initial(), &exponent) != 0.5)) {
      return BadOptimizer(
          "loss_scale.initial",
          absl::StrCat("is ", scale.initial(), "; accepted: a power of two, 2^-24 to 2^100"));
    }
    if (scale.growth_interval() < 0 || scale.growth_interval() > (1 << 24)) {
      return BadOptimizer(
          "loss_scale.growth_interval",
          absl::StrCat("is ", scale.growth_interval(), "; accepted: 0 (fixed) to 2^24"));
    }
  }
  for (const v1::Regularizer& r : optimizer.regularizers()) {
    for (double factor : {r.l1(), r.l2()}) {
      if (!(factor >= 0) || factor >= 1e6) {
        return BadOptimizer("regularizers",
                            absl::StrCat("has the factor ", factor, " for '", r.parameter(),
                                         "'; accepted: 0 or more, below 1e6"));
      }
    }
  }
  return absl::OkStatus();
}

void CompleteLossScale(const OpRegistry& registry, v1::LossScale* scale) {
  if (scale->initial() != 0) return;
  for (const AttributeSpec& attribute : registry.Find("unscale_gradients")->attributes) {
    if (attribute.name == "initial") {
      scale->set_initial(std::get<double>(*attribute.default_value));
    } else if (attribute.name == "growth_interval" && scale->growth_interval() == 0) {
      scale->set_growth_interval(std::get<int64_t>(*attribute.default_value));
    }
  }
}

bool Applies(const v1::Regularizer& regularizer, const std::string& parameter) {
  absl::string_view pattern = regularizer.parameter();
  if (pattern.empty()) return true;
  if (!absl::ConsumeSuffix(&pattern, "*")) return parameter == pattern;
  return absl::StartsWith(parameter, pattern);
}

Penalty PenaltyOf(const v1::Optimizer& optimizer, const std::string& parameter) {
  Penalty penalty;
  for (const v1::Regularizer& regularizer : optimizer.regularizers()) {
    if (!Applies(regularizer, parameter)) continue;
    penalty.l1 += regularizer.l1();
    penalty.l2 += regularizer.l2();
  }
  return penalty;
}

}  // namespace espalier
