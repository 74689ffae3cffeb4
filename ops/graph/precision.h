// Mixed precision: which operators of a training graph run in bf16 or f16.
#pragma once

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// A bound graph (see BindAndInfer), cast as OpDef::precision says: products in `compute`, losses,
// norms and long sums in f32, the rest in the type that its operands have. Named outputs keep their
// types.
//
// Trained parameters are f32 (master weights) in the result, whatever they were, so that updates
// smaller than their last bit are not lost; operators read them as they are where Arity::wide says
// that they can. With `compute` = kF32 nothing else changes: operators compute in the types that
// the graph names.
//
// The policy is that of torch.autocast. InvalidArgument: `compute` is no floating-point type, or a
// node refuses the types that follow (named).
absl::StatusOr<Graph> WithPrecision(const OpRegistry& registry, const Graph& graph, DType compute);

}  // namespace espalier
