// A typed pointer to a dense row-major block. Standard library only: the CUDA plug-in includes it.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/tensor/shape.h"

namespace espalier {

// A shard of a tensor: its type and its position in the whole tensor. An unsplit tensor has offset
// 0 everywhere and global == dims.
struct TensorSpec {
  DType dtype = DType::kInvalid;
  Dims dims;    // of this shard
  Dims offset;  // of this shard's first element in the whole tensor, one per dimension
  Dims global;  // dimensions of the whole tensor

  static TensorSpec Whole(const TensorType& type) {
    return {type.dtype, type.dims, Dims(type.dims.size(), 0), type.dims};
  }
  TensorType type() const { return {dtype, dims}; }
  int64_t num_elements() const { return NumElements(dims); }
  int64_t bytes() const { return num_elements() * static_cast<int64_t>(SizeOf(dtype)); }
  bool operator==(const TensorSpec&) const = default;
};

// A TensorSpec with its data. `data` is null for an absent optional input or an output that nobody
// reads; kernels skip both. Does not own the memory.
struct TensorView {
  void* data = nullptr;
  TensorSpec spec;

  bool present() const { return data != nullptr; }
  const Dims& dims() const { return spec.dims; }
  DType dtype() const { return spec.dtype; }
  int64_t num_elements() const { return spec.num_elements(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace espalier
