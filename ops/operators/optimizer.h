// Shared by the optimiser updates. A new optimiser is a new operator <name>_update whose OpDef has
// `update`: planner, workers, server and client find it there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/schema/op_def.h"

namespace espalier {

// parameter, gradient, scale f32[] (absent: 1), hyper f32[2] = (learning rate, step from 1), then
// buffers like the parameter -> the parameter, updated in place, as are the buffers; with step 0
// both stay as they are. All f32.
OpDef MakeUpdate(const std::string& name, const std::string& doc, const std::vector<Arity>& buffers,
                 double flops_per_element);

// The states of an optimiser that keeps tensors like the parameter, under these names.
std::function<std::vector<Update::State>(const Attributes&, const Dims&)> StatesLikeParameter(
    const std::vector<std::string>& names);

// A number in [low, high), or an error that names attribute and operator.
absl::Status ExpectInRange(absl::string_view op, const Attributes& attributes,
                           absl::string_view name, double low, double high);

}  // namespace espalier
