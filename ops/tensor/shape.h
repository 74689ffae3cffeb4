// Shapes and regions of tensors. Standard library only: the CUDA plug-in includes this file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/tensor/dtype.h"

namespace espalier {

// Dimensions, outermost first, row-major. A scalar has none. -1 is the batch dimension of a graph
// that is not yet bound to a batch size; kernels see bound shapes only.
using Dims = std::vector<int64_t>;

inline int64_t NumElements(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

// "[2, 3]"
inline std::string ToString(const Dims& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ", ";
    out += dims[i] < 0 ? "batch" : std::to_string(dims[i]);
  }
  return out + "]";
}

struct TensorType {
  DType dtype = DType::kInvalid;
  Dims dims;

  int64_t num_elements() const { return NumElements(dims); }
  int64_t bytes() const { return num_elements() * static_cast<int64_t>(SizeOf(dtype)); }
  bool operator==(const TensorType&) const = default;
};

inline std::string ToString(const TensorType& type) {
  return std::string(Name(type.dtype)) + ToString(type.dims);
}

// A box inside a tensor: [start[d], start[d] + size[d]) in every dimension d.
struct Region {
  Dims start;
  Dims size;

  static Region Whole(const Dims& dims) { return {Dims(dims.size(), 0), dims}; }
  int64_t num_elements() const { return NumElements(size); }
  bool operator==(const Region&) const = default;
};

}  // namespace espalier
