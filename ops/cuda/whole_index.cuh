// Places of a shard's elements in the whole tensor, which key random numbers.
#pragma once

#include "ops/cuda/strided.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Maps the row-major index of an element of a shard to that in the whole tensor.
struct WholeIndex {
  int rank = 0;
  int64_t size[8] = {};
  int64_t stride[8] = {};
  int64_t first = 0;

  explicit WholeIndex(const TensorSpec& spec) {
    const Dims whole = DenseStrides(spec.global);
    for (size_t d = 0; d < spec.dims.size(); ++d) {
      first += spec.offset[d] * whole[d];
      if (rank > 0 && stride[rank - 1] == whole[d] * spec.dims[d]) {
        size[rank - 1] *= spec.dims[d];
        stride[rank - 1] = whole[d];
        continue;
      }
      size[rank] = spec.dims[d];
      stride[rank] = whole[d];
      ++rank;
    }
  }

  __device__ int64_t operator()(int64_t i) const {
    int64_t at = first;
    for (int d = rank - 1; d > 0; --d) {
      const int64_t next = i / size[d];
      at += (i - next * size[d]) * stride[d];
      i = next;
    }
    return rank == 0 ? at : at + i * stride[0];
  }
};

}  // namespace espalier
