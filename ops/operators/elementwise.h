// What elementwise operators have in common: their definitions differ by a formula and a few facts.
#pragma once

#include <string>

#include "ops/schema/op_def.h"

namespace espalier {

// What the gradient of y = f(x) is computed from, besides the gradient of y.
enum class Saves { kNothing, kInput, kOutput };

// y = f(x): same type and shape, split along every dimension, differentiable.
struct UnaryOp {
  std::string name;
  std::string doc;
  double flops = 1;  // per element
  Saves saves = Saves::kNothing;
  bool any_type = false;  // otherwise f32, bf16 and f16
};
OpDef MakeUnary(const UnaryOp& op);

// y = f(a, b) with numpy's broadcasting; a and b have one type. Split along every dimension of y;
// an input's dimension of size 1 that is broadcast is not split.
struct BinaryOp {
  std::string name;
  std::string doc;
  bool integers = false;      // i32 and i64 besides the floating-point types
  bool saves_inputs = false;  // whether the gradient reads a and b
};
OpDef MakeBinary(const BinaryOp& op);

// Every operand has the shape of input 0 (or is absent): one axis per dimension.
SplitRule SplitAlike(const NodeTypes& types);

// Likewise, but all outputs are scalars: partial sums. Axes are reductions, or as SplitAlike has
// them.
SplitRule SplitIntoScalars(const NodeTypes& types, bool as_reduction);

// One type, any of the floating-point ones, i32, i64 (and bool if `with_bool`).
absl::Status ExpectNumber(absl::string_view op, absl::string_view name, const TensorType& type,
                          bool with_bool = false);

}  // namespace espalier
