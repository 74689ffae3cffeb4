// Mixed precision: which operators of a training graph run in bf16 or f16.
#pragma once

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// Returns a bound graph (see BindAndInfer) with casts as OpDef::precision says: matrix products in
// `compute`, losses, norms and long sums in f32, the rest in the type of its operands. Named
// outputs keep their types. The policy is that of torch.autocast.
//
// Trained parameters become f32 master weights, so that updates smaller than the last bit of a
// 16-bit type are not lost; operators read them as f32 where Arity::wide allows it. With `compute`
// = kF32 nothing else changes.
//
// Returns InvalidArgument if `compute` is not a floating-point type, or a node (named) refuses the
// resulting types.
absl::StatusOr<Graph> WithPrecision(const OpRegistry& registry, const Graph& graph, DType compute);

}  // namespace espalier
