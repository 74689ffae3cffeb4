// Prints the operators as JSON, as Ops.List returns them: what generated packages, such as the
// Python package's espalier.ops, are made from. Bazel: bazel run //tools/docs:operators_json.
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "espalier/v1/ops.pb.h"
#include "ops/graph/operators_proto.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity.
Json Number(double value) {
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json ValueJson(const v1::Attribute& value) {
  switch (value.value_case()) {
    case v1::Attribute::kI:
      return value.i();
    case v1::Attribute::kF:
      return Number(value.f());
    case v1::Attribute::kB:
      return value.b();
    case v1::Attribute::kS:
      return value.s();
    case v1::Attribute::kInts:
      return Json(value.ints().values());
    case v1::Attribute::kFloats: {
      Json floats = Json::array();
      for (const double f : value.floats().values()) floats.push_back(Number(f));
      return floats;
    }
    case v1::Attribute::VALUE_NOT_SET:
      break;
  }
  return nullptr;
}

Json ToJson(const v1::Operator& op) {
  Json json = {{"name", op.name()}, {"doc", op.doc()}};
  Json& inputs = json["inputs"] = Json::array();
  for (const v1::Operator::Input& input : op.inputs()) {
    inputs.push_back({{"name", input.name()},
                      {"optional", input.optional()},
                      {"variadic", input.variadic()},
                      {"differentiable", input.differentiable()}});
  }
  json["outputs"] = op.outputs();
  Json& attributes = json["attributes"] = Json::array();
  for (const v1::Operator::AttributeSpec& attribute : op.attributes()) {
    Json one = {{"name", attribute.name()},
                {"kind", v1::Operator::AttributeSpec::Kind_Name(attribute.kind())},
                {"required", attribute.required()}};
    if (attribute.has_default_value()) one["default"] = ValueJson(attribute.default_value());
    one["doc"] = attribute.doc();
    attributes.push_back(std::move(one));
  }
  Json& types = json["types"] = Json::array();
  for (const int type : op.types()) types.push_back(v1::DataType_Name(type));
  json["is_loss"] = op.is_loss();
  json["is_metric"] = op.is_metric();
  json["differentiable"] = op.differentiable();
  json["random"] = op.random();
  json["larger_is_better"] = op.larger_is_better();
  json["optimizers"] = Json(op.optimizers());
  return json;
}

}  // namespace
}  // namespace espalier

int main() {
  espalier::OpRegistry registry;
  espalier::RegisterAllOperators(registry);
  nlohmann::ordered_json operators = nlohmann::ordered_json::array();
  const espalier::v1::ListOperatorsReply reply = espalier::ListOperators(registry);
  for (const espalier::v1::Operator& op : reply.operators()) {
    operators.push_back(espalier::ToJson(op));
  }
  std::cout << nlohmann::ordered_json{{"operators", std::move(operators)}}.dump(1) << "\n";
  return std::cout.good() ? 0 : 1;
}
