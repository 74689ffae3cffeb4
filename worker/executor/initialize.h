// First values of parameters, by any split the same: element i of the whole tensor depends on
// (seed, name, i) alone.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ops/tensor/view.h"
#include "espalier/v1/graph.pb.h"

namespace espalier {

// FNV-1a, 64 bits.
uint64_t NameHash(const std::string& name);

// Writes the region `spec` of parameter `name` to `host`, row-major in spec.dtype. NORMAL is
// Box-Muller over Philox; GLOROT_UNIFORM has half width sqrt(6 / (fan in + fan out)) of the whole
// tensor, with weights laid out [out, in, spatial...]. InvalidArgument for a random start of an
// integer tensor.
absl::Status Initialize(const v1::Initializer& initializer, const std::string& name,
                        uint64_t seed, const TensorSpec& spec, void* host);

}  // namespace espalier
