// Initial parameter values, independent of sharding: element i of the whole tensor depends on
// (seed, name, i) only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "espalier/v1/graph.pb.h"
#include "ops/tensor/view.h"

namespace espalier {

// 64-bit FNV-1a hash.
uint64_t NameHash(const std::string& name);

// Writes the region `spec` of parameter `name` to `host`, row-major in spec.dtype. NORMAL is
// Box-Muller over Philox; GLOROT_UNIFORM has half width sqrt(6 / (fan in + fan out)) of the whole
// tensor, whose layout is [out, in, spatial...]. Returns InvalidArgument for a random initializer
// of an integer tensor.
absl::Status Initialize(const v1::Initializer& initializer, const std::string& name, uint64_t seed,
                        const TensorSpec& spec, void* host);

}  // namespace espalier
