// The attribute `activation`, which fuses an activation into an operator.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

namespace espalier {

// "none" (the default), "relu", "gelu" (erf), "silu", "sigmoid" or "tanh".
AttributeSpec ActivationAttribute();
absl::Status ExpectActivation(absl::string_view op, const Attributes& attributes);

// Whether an activation follows; the result must then not be a partial sum.
bool HasActivation(const Attributes& attributes);

// Gradient::is_needed of an operator (x, weight, bias?) -> y with this attribute. The gradient
// reads y if the activation allows it; otherwise it recomputes the value before the activation.
bool ActivationNeeds(const Attributes& attributes, bool is_output, int index);

}  // namespace espalier
