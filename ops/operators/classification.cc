#include "ops/operators/classification.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

SplitRule Split(const NodeTypes& types) {
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
  def.attributes = {{.name = "count",
                     .kind = AttributeKind::kInt,
                     .doc = "number of labels in the whole tensor; filled in"},
                    {.name = "ignore_index",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{-100},
                     .doc = "a label that adds nothing to the sum"}};
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
  def.split = Split;
  return def;
}

}  // namespace espalier
