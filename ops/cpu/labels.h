// Integer inputs that select among several: labels and indices.
#pragma once

#include <cstdint>
#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

// Returns element i of an i32 or i64 tensor.
inline int64_t IntegerAt(const TensorView& view, int64_t i) {
  return view.dtype() == DType::kI32 ? view.as<int32_t>()[i] : view.as<int64_t>()[i];
}

// Returns the coordinates of element i of a shard in the whole tensor, as "[3, 17]". Empty for a
// scalar.
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

// Checks that every label is in [0, classes) or equal to ignore_index. Otherwise returns an error
// that names the first offender, its coordinates in the whole tensor and the accepted range.
KernelStatus CheckLabels(const std::string& op, const TensorView& labels, int64_t classes,
                         int64_t ignore_index);

}  // namespace espalier
