// Integer inputs that choose among several: labels and indices.
#pragma once

#include <cstdint>
#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

// Element i of an i32 or i64 tensor.
inline int64_t IntegerAt(const TensorView& view, int64_t i) {
  return view.dtype() == DType::kI32 ? view.as<int32_t>()[i] : view.as<int64_t>()[i];
}

// "[3, 17]": where element i of a shard lies in the whole tensor. Empty for a scalar.
inline std::string PlaceInWhole(const TensorView& view, int64_t i) {
  const TensorSpec& spec = view.spec;
  if (spec.dims.empty()) return "";
  Dims place(spec.dims.size());
  for (size_t d = spec.dims.size(); d-- > 0;) {
    place[d] = i % spec.dims[d] + (d < spec.offset.size() ? spec.offset[d] : 0);
    i /= spec.dims[d];
  }
  return ToString(place);
}

// Every label is in [0, classes) or equal to ignore_index; otherwise an error that names the first
// one that is not, its place in the whole tensor and what would be accepted.
KernelStatus CheckLabels(const std::string& op, const TensorView& labels, int64_t classes,
                         int64_t ignore_index);

}  // namespace espalier
