// Elementwise operators: MakeUnary and MakeBinary build their definitions from a few facts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

namespace espalier {

// Element types by letter: F (f32, bf16, f16), I (i32, i64), S (i8, u8), B (bool).
std::vector<DType> ElementTypes(absl::string_view letters);

// What the gradient of y = f(x) reads in addition to the gradient of y.
enum class Saves { kNothing, kInput, kOutput };

// y = f(x): same shape, split along every dimension.
struct UnaryOp {
  std::string name;
  std::string doc;
  double flops = 1;  // per element
  Saves saves = Saves::kNothing;
  bool any_type = false;  // otherwise those of `types`
  std::vector<DType> types = ElementTypes("F");
  std::vector<AttributeSpec> attributes = {};
  DType output = DType::kInvalid;  // kInvalid: the type of x
  bool differentiable = true;
  Precision precision = Precision::kFollow;
  std::optional<OnnxForm> onnx = std::nullopt;
};
OpDef MakeUnary(const UnaryOp& op);

// y = f(a, b) with numpy's broadcasting; a and b have the same type. Split along every dimension of
// y, except where an input has size 1 and is broadcast.
struct BinaryOp {
  std::string name;
  std::string doc;
  double flops = 1;           // per element
  bool saves_inputs = false;  // whether the gradient reads a and b
  std::vector<DType> types = ElementTypes("F");
  DType output = DType::kInvalid;  // kInvalid: the type of a
  bool differentiable = true;
  std::optional<OnnxForm> onnx = std::nullopt;
};
OpDef MakeBinary(const BinaryOp& op);

// An attribute that is a number with a default.
AttributeSpec FloatAttribute(const std::string& name, double default_value, const std::string& doc);

// `flops` per element of output 0, and the bytes of all operands.
std::function<Cost(const NodeTypes&)> CostPerElement(double flops);

// One axis per dimension of output 0; the dimensions in which an input is broadcast are not split.
SplitRule SplitBroadcast(const NodeTypes& types);

// All operands have the shape of input 0 (or are absent): one axis per dimension.
SplitRule SplitAlike(const NodeTypes& types);

// Inputs have the shape of input 0, outputs are scalars: partial sums. Axes are reductions, or
// kinds as in SplitAlike.
SplitRule SplitIntoScalars(const NodeTypes& types, bool as_reduction);

// Checks for a floating-point type, i32, i64, or bool if `with_bool`.
absl::Status ExpectNumber(absl::string_view op, absl::string_view name, const TensorType& type,
                          bool with_bool = false);

}  // namespace espalier
