#include "ops/operators/loss.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

OpDef MakePair(const std::string& name, const std::string& doc, double flops_per_element,
               int least_rank) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"prediction"}, {"target"}};
  def.infer = [name,
               least_rank](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef prediction{name, "prediction", types.inputs[0]};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(prediction, {DType::kF32}));
    ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(prediction, least_rank));
    ESPALIER_RETURN_IF_ERROR(ExpectSameType({name, "target", types.inputs[1]}, prediction));
    return std::vector<TensorType>{{DType::kF32, {}}};
  };
  def.cost = [flops_per_element](const NodeTypes& types) {
    return Cost{flops_per_element * static_cast<double>(types.inputs[0].num_elements()),
                OperandBytes(types)};
  };
  return def;
}

}  // namespace

AttributeSpec CountAttribute(const std::string& of_what) {
  return {.name = "count",
          .kind = AttributeKind::kInt,
          .doc = absl::StrCat("number of ", of_what, " of the whole tensor; filled in")};
}

AttributeSpec ReductionAttribute(const std::string& doc) {
  return {.name = "reduction",
          .kind = AttributeKind::kString,
          .default_value = std::string("mean"),
          .doc = doc};
}

absl::Status ExpectOneOf(absl::string_view op, const Attributes& attributes, const char* name,
                         std::initializer_list<const char*> accepted) {
  const std::string value = attributes.String(name);
  if (std::find(accepted.begin(), accepted.end(), value) != accepted.end()) {
    return absl::OkStatus();
  }
  return AttributeError(op, name, absl::StrCat("'", value, "'"),
                        absl::StrCat("one of ", absl::StrJoin(accepted, ", ")));
}

void TakeExampleWeights(OpDef* def) {
  const size_t index = def->inputs.size();
  def->inputs.push_back({"example_weights", /*optional=*/true});
  def->doc += "; the values of example n are multiplied by example_weights[n]";
  def->infer = [name = def->name, index, infer = def->infer](
                   const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    if (types.has_input(index)) {
      const InputRef weights{name, "example_weights", types.inputs[index]};
      ESPALIER_RETURN_IF_ERROR(ExpectDType(weights, {DType::kF32}));
      ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast({name, "input 0", types.inputs[0]}, 1));
      ESPALIER_RETURN_IF_ERROR(
          ExpectShape(weights, {types.inputs[0].dims[0]}, "there is one weight per example"));
      if (types.attributes.String("reduction", "mean") == "none") {
        return AttributeError(name, "reduction", "'none'", "'mean' or 'sum' with example_weights");
      }
    }
    return infer(types);
  };
  def->split = [index, split = def->split](const NodeTypes& types) {
    SplitRule rule = split(types);
    if (types.inputs.size() <= index) return rule;
    rule.inputs.resize(index);
    rule.inputs.emplace_back();
    if (types.has_input(index)) rule.inputs.back() = {rule.inputs[0][0]};
    return rule;
  };
  if (def->gradient.has_value()) def->gradient->needs_inputs.push_back(static_cast<int>(index));
}

OpDef MakeElementLoss(const std::string& name, const std::string& doc, double flops_per_element) {
  OpDef def = MakePair(name, doc, flops_per_element, 0);
  def.attributes = {CountAttribute("elements")};
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    attributes->Set("count", types.inputs[0].num_elements());
  };
  def.split = [](const NodeTypes& types) { return SplitIntoScalars(types, false); };
  return def;
}

OpDef MakeDistributionLoss(const std::string& name, const std::string& doc,
                           double flops_per_element) {
  OpDef def = MakePair(name, doc, flops_per_element, 1);
  def.attributes = {CountAttribute("rows")};
  def.infer =
      [name, pair = def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    absl::StatusOr<std::vector<TensorType>> outputs = pair(types);
    if (outputs.ok() && types.inputs[0].dims.back() < 1) {
      return OpError(name,
                     absl::StrCat("input 'prediction' has shape ", ToString(types.inputs[0].dims),
                                  ", expected at least one class in the last dimension"));
    }
    return outputs;
  };
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    const TensorType& x = types.inputs[0];
    attributes->Set("count", x.num_elements() / x.dims.back());
  };
  def.split = [](const NodeTypes& types) {
    SplitRule rule;
    const Dims& dims = types.inputs[0].dims;
    std::vector<int> axes = AddLeadingAxes(dims, dims.size() - 1, &rule);
    axes.push_back(kNotSplit);
    rule.inputs = {axes, axes};
    rule.outputs = {{}};
    return rule;
  };
  return def;
}

}  // namespace espalier
