// Shared by the optimiser updates.
#pragma once

#include <string>
#include <vector>

#include "ops/schema/op_def.h"

namespace espalier {

// parameter, gradient, scale f32[] (absent: 1), hyper f32[2] = (learning rate, step from 1), then
// buffers like the parameter -> the parameter, updated in place, as are the buffers. All f32.
OpDef MakeUpdate(const std::string& name, const std::string& doc, const std::vector<Arity>& buffers,
                 double flops_per_element);

// A number in [low, high), or an error that names attribute and operator.
absl::Status ExpectInRange(absl::string_view op, const Attributes& attributes,
                           absl::string_view name, double low, double high);

}  // namespace espalier
