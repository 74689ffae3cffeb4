// Tensors and attributes as JSON. A tensor is {"dtype": "f32", "dims": [2, 3], "data": [numbers]},
// an absent one null. bf16 and f16 elements are numbers, too; non-finite elements are "nan", "inf",
// "-inf".
#pragma once

#include <nlohmann/json.hpp>

#include "ops/kernel/attributes.h"
#include "ops/schema/op_def.h"
#include "tests/conformance/serve.h"
#include "tests/gpu/backend.h"

namespace espalier::conformance {

using gpu_check::HostTensor;

HostTensor TensorFromJson(const json& value);
json ToJson(const HostTensor& tensor);

// A list has integers unless it has a fraction.
Attributes AttributesFromJson(const json& value);

// "sample", "attribute", "parameter", "reduction".
const char* KindName(AxisKind kind);

// Fields "seed", "node_key", "step", "training" of a request.
gpu_check::RunOptions OptionsOf(const json& request);

}  // namespace espalier::conformance
