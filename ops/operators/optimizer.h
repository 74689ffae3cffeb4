// Optimizer updates. A new optimizer is a new operator <name>_update whose OpDef has `update`;
// planner, workers, server and client find it there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/schema/op_def.h"

namespace espalier {

// parameter, gradient, scale f32[] (absent: 1), hyper f32[2] = (learning rate, step from 1), then
// buffers with the parameter's shape -> the parameter. Updates parameter and buffers in place; with
// step 0 leaves both unchanged. All f32.
OpDef MakeUpdate(const std::string& name, const std::string& doc, const std::vector<Arity>& buffers,
                 double flops_per_element);

// The states of an optimizer that keeps tensors of the parameter's shape, under these names.
std::function<std::vector<Update::State>(const Attributes&, const Dims&)> StatesLikeParameter(
    const std::vector<std::string>& names);

// Checks for a number in [low, high).
absl::Status ExpectInRange(absl::string_view op, const Attributes& attributes,
                           absl::string_view name, double low, double high);

}  // namespace espalier
