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
#include "ops/graph/name_pattern.h"
#include "ops/optimizer/lr_schedule.h"

namespace espalier {
namespace {

constexpr char kWeightDecay[] = "weight_decay";

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

absl::Status CheckGroupOptions(const OpDef& update, const v1::Optimizer& optimizer) {
  const bool decays =
      std::any_of(update.attributes.begin(), update.attributes.end(),
                  [](const AttributeSpec& attribute) { return attribute.name == kWeightDecay; });
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    const v1::ParameterGroup& group = optimizer.groups(i);
    const std::string field = absl::StrCat("groups[", i, "].");
    if (group.parameters().empty()) {
      return BadOptimizer(absl::StrCat(field, "parameters"), "is empty; give names or patterns");
    }
    if (const double scale = group.learning_rate_scale(); !(scale >= 0) || scale >= 1e6) {
      return BadOptimizer(absl::StrCat(field, "learning_rate_scale"),
                          absl::StrCat("is ", scale, "; accepted: 0 or more, below 1e6"));
    }
    if (!group.has_weight_decay()) continue;
    if (const double decay = group.weight_decay(); !(decay >= 0) || decay >= 1e6) {
      return BadOptimizer(absl::StrCat(field, kWeightDecay),
                          absl::StrCat("is ", decay, "; accepted: 0 or more, below 1e6"));
    }
    if (!decays) {
      return BadOptimizer(absl::StrCat(field, kWeightDecay),
                          absl::StrCat("is given, but '", optimizer.name(), "' has none"));
    }
  }
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
  absl::StatusOr<UpdateChoice> choice = ChooseUpdate(registry, optimizer);
  if (!choice.ok()) return choice.status();
  if (absl::Status s = CheckGroupOptions(*choice->def, optimizer); !s.ok()) return s;
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

int GroupOf(const v1::Optimizer& optimizer, const std::string& parameter) {
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    const auto& patterns = optimizer.groups(i).parameters();
    if (std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
          return MatchesPattern(pattern, parameter);
        })) {
      return i;
    }
  }
  return -1;
}

double LearningRateScale(const v1::Optimizer& optimizer, const std::string& parameter) {
  const int group = GroupOf(optimizer, parameter);
  return group >= 0 && optimizer.groups(group).has_learning_rate_scale()
             ? optimizer.groups(group).learning_rate_scale()
             : 1.0;
}

Attributes UpdateAttributes(const UpdateChoice& choice, const v1::Optimizer& optimizer,
                            const std::string& parameter) {
  Attributes attributes = choice.attributes;
  const int group = GroupOf(optimizer, parameter);
  if (group >= 0 && optimizer.groups(group).has_weight_decay()) {
    attributes.Set(kWeightDecay, optimizer.groups(group).weight_decay());
  }
  return attributes;
}

absl::Status CheckGroups(const Graph& graph, const v1::Optimizer& optimizer) {
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    for (const std::string& pattern : optimizer.groups(i).parameters()) {
      const bool matches =
          std::any_of(graph.values().begin(), graph.values().end(), [&](const Value& value) {
            return value.kind == ValueKind::kParameter && value.trainable &&
                   MatchesPattern(pattern, value.name);
          });
      if (!matches) {
        return BadOptimizer(
            absl::StrCat("groups[", i, "].parameters"),
            absl::StrCat("has '", pattern, "', which matches no trained parameter"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
