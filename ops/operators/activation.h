// The attribute `activation` of operators that apply one to their result.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

namespace espalier {

// "none" (the default), "relu", "gelu" (erf), "silu", "sigmoid" or "tanh".
AttributeSpec ActivationAttribute();
absl::Status ExpectActivation(absl::string_view op, const Attributes& attributes);

// An activation follows: the result must not be a partial sum.
bool HasActivation(const Attributes& attributes);

// Gradient::is_needed of an operator (x, weight, bias?) -> y with such an attribute: the gradient
// is computed from y where the activation allows it, otherwise y before the activation is computed
// again.
bool ActivationNeeds(const Attributes& attributes, bool is_output, int index);

}  // namespace espalier
