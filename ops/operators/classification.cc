#include "ops/operators/classification.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/loss.h"

namespace espalier {
namespace {

AttributeSpec IgnoreIndexAttribute() {
  return {.name = "ignore_index",
          .kind = AttributeKind::kInt,
          .default_value = int64_t{-100},
          .doc = "a label that adds nothing to the sum"};
}

SplitRule SplitClassification(const NodeTypes& types) {
  SplitRule rule;
  const Dims& labels = types.inputs[1].dims;
  const std::vector<int> axes = AddLeadingAxes(labels, labels.size(), &rule);
  rule.inputs = {axes, axes};
  rule.inputs[0].push_back(kNotSplit);
  rule.outputs = {{}};
  return rule;
}

}  // namespace

OpDef MakeClassification(const std::string& name, const std::string& doc) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"logits"}, {"labels"}};
  def.attributes = {CountAttribute("labels"), IgnoreIndexAttribute()};
  def.infer = [name](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef logits{name, "logits", types.inputs[0]}, labels{name, "labels", types.inputs[1]};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(logits, {DType::kF32}));
    ESPALIER_RETURN_IF_ERROR(ExpectInteger(labels));
    ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(logits, 1));
    const std::vector<ExpectedDim> leading(logits.type.dims.begin(), logits.type.dims.end() - 1);
    ESPALIER_RETURN_IF_ERROR(ExpectShape(
        labels, leading,
        absl::StrCat("input 'logits' has shape ", ToString(logits.type.dims), ", classes last")));
    if (logits.type.dims.back() < 1) {
      return OpError(name, absl::StrCat("input 'logits' has shape ", ToString(logits.type.dims),
                                        ", expected at least one class in the last dimension"));
    }
    return std::vector<TensorType>{{DType::kF32, {}}};
  };
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    attributes->Set("count", types.inputs[1].num_elements());
  };
  def.split = SplitClassification;
  return def;
}

std::vector<AttributeSpec> LabelLossAttributes(const std::string& mean_over) {
  return {CountAttribute("labels"),
          IgnoreIndexAttribute(),
          ReductionAttribute("\"mean\", \"sum\" or \"none\" (one value per label)"),
          {.name = "mean_over",
           .kind = AttributeKind::kString,
           .default_value = mean_over,
           .doc = "\"all\" labels, or \"counted\": the weights of those that are not ignored. "
                  "Such a mean runs on one device"}};
}

IndexRange LabelRange(const NodeTypes& types, int64_t classes) {
  return {
      .input = 1, .low = 0, .high = classes - 1, .ignored = types.attributes.Int("ignore_index")};
}

absl::Status CheckLabelReduction(const std::string& op, const Attributes& attributes) {
  ESPALIER_RETURN_IF_ERROR(ExpectOneOf(op, attributes, "reduction", {"mean", "sum", "none"}));
  return ExpectOneOf(op, attributes, "mean_over", {"all", "counted"});
}

TensorType LabelLossType(const NodeTypes& types) {
  if (types.attributes.String("reduction") == "none") return {DType::kF32, types.inputs[1].dims};
  return {DType::kF32, {}};
}

SplitRule SplitLabels(const NodeTypes& types) {
  SplitRule rule;
  const std::string reduction = types.attributes.String("reduction");
  const Dims& labels = types.inputs[1].dims;
  std::vector<int> axes(labels.size(), kNotSplit);
  if (reduction != "mean" || types.attributes.String("mean_over") == "all") {
    axes = AddLeadingAxes(labels, labels.size(), &rule);
  }
  rule.inputs = {axes, axes};
  if (types.inputs.size() > 2) {
    rule.inputs.push_back(std::vector<int>(types.has_input(2) ? 1 : 0, kNotSplit));
  }
  rule.outputs = {reduction == "none" ? axes : std::vector<int>{}};
  return rule;
}

}  // namespace espalier
