#include "ops/graph/operators_proto.h"

#include <algorithm>

#include "ops/graph/graph_proto.h"

namespace espalier {
namespace {

v1::Operator::AttributeSpec::Kind AttributeKindToProto(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kInt:
      return v1::Operator::AttributeSpec::INT;
    case AttributeKind::kFloat:
      return v1::Operator::AttributeSpec::FLOAT;
    case AttributeKind::kBool:
      return v1::Operator::AttributeSpec::BOOL;
    case AttributeKind::kString:
      return v1::Operator::AttributeSpec::STRING;
    case AttributeKind::kInts:
      return v1::Operator::AttributeSpec::INTS;
    case AttributeKind::kFloats:
      return v1::Operator::AttributeSpec::FLOATS;
  }
  return v1::Operator::AttributeSpec::KIND_UNSPECIFIED;
}

bool IsDifferentiable(const OpDef& def, size_t input) {
  if (!def.gradient.has_value()) return false;
  const std::vector<int>& differentiable = def.gradient->differentiable;
  return std::find(differentiable.begin(), differentiable.end(), static_cast<int>(input)) !=
         differentiable.end();
}

}  // namespace

bool LargerIsBetter(const OpDef& def) {
  return def.is_metric && (def.prediction == Prediction::kClassScores ||
                           def.prediction == Prediction::kBinaryScores);
}

v1::Operator ToProto(const OpDef& def) {
  v1::Operator op;
  op.set_name(def.name);
  op.set_doc(def.doc);
  for (size_t i = 0; i < def.inputs.size(); ++i) {
    v1::Operator::Input* input = op.add_inputs();
    input->set_name(def.inputs[i].name);
    input->set_optional(def.inputs[i].optional);
    input->set_variadic(def.inputs[i].variadic);
    input->set_differentiable(IsDifferentiable(def, i));
  }
  op.set_outputs(def.num_outputs);
  for (const AttributeSpec& spec : def.attributes) {
    v1::Operator::AttributeSpec* attribute = op.add_attributes();
    attribute->set_name(spec.name);
    attribute->set_kind(AttributeKindToProto(spec.kind));
    if (spec.default_value.has_value()) {
      // A number may have an integer as its default.
      AttributeValue value = *spec.default_value;
      if (const auto* i = std::get_if<int64_t>(&value);
          i != nullptr && spec.kind == AttributeKind::kFloat) {
        value = static_cast<double>(*i);
      }
      google::protobuf::Map<std::string, v1::Attribute> values;
      AttributesToProto({{spec.name, value}}, &values);
      *attribute->mutable_default_value() = values.at(spec.name);
    }
    attribute->set_required(spec.required && !spec.default_value.has_value());
    attribute->set_doc(spec.doc);
  }
  for (const DType type : def.types) op.add_types(ToProto(type));
  op.set_is_loss(def.is_loss);
  op.set_is_metric(def.is_metric);
  op.set_differentiable(def.has_gradient());
  op.set_random(def.random);
  op.set_larger_is_better(LargerIsBetter(def));
  if (def.update.has_value()) {
    for (const Update::Variant& variant : def.update->variants) op.add_optimizers(variant.name);
  }
  return op;
}

v1::ListOperatorsReply ListOperators(const OpRegistry& registry) {
  v1::ListOperatorsReply reply;
  for (const OpDef* def : registry.All()) *reply.add_operators() = ToProto(*def);
  return reply;
}

}  // namespace espalier
