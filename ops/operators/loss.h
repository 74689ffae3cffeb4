// Losses and metrics that are sums over elements, rows or labels. Under a split each shard holds a
// partial sum. A metric that is not a sum (a root, an exponential) has OpDef::finish.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "ops/schema/op_def.h"

namespace espalier {

// `count`: the number of summands of the mean in the whole tensor; filled in by canonicalize.
AttributeSpec CountAttribute(const std::string& of_what);

// `reduction`, with the accepted values named in its doc.
AttributeSpec ReductionAttribute(const std::string& doc);

// Checks that the string attribute `name` is one of `accepted`.
absl::Status ExpectOneOf(absl::string_view op, const Attributes& attributes, const char* name,
                         std::initializer_list<const char*> accepted);

// Appends the optional input `example_weights`, f32 [N] for N examples in dimension 0 of input 0:
// every value of example n is multiplied by example_weights[n] before the sum (Keras'
// sample_weight). The weights are split like the examples. Call it after `infer`, `split` and
// `gradient` are set. Not for reduction "none".
void TakeExampleWeights(OpDef* def);

// prediction, target (f32, one shape) -> f32 scalar, the mean over all elements; partial sums under
// any split.
OpDef MakeElementLoss(const std::string& name, const std::string& doc, double flops_per_element);

// prediction[..., C], target[..., C] -> f32 scalar, the mean over all rows. Splits leading
// dimensions into partial sums.
OpDef MakeDistributionLoss(const std::string& name, const std::string& doc,
                           double flops_per_element);

}  // namespace espalier
