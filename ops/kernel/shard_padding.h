// Padding of convolutions and pools on a shard of the image.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/kernel/attributes.h"
#include "ops/tensor/view.h"

namespace espalier {

// Returns attributes with which windows over the shard x[N, C, spatial...] give the shard y. A
// shard of a convolution or pool is the same operator with padding only at sides where the image
// ends too. `kernel`: one size per spatial dimension. x and dx of a shard include its halo
// (ops/schema/op_def.h).
inline Attributes ShardAttributes(Attributes attributes, const TensorSpec& x, const TensorSpec& y,
                                  const Dims& kernel) {
  const size_t spatial = kernel.size();
  if (x.offset.empty() || std::equal(y.dims.begin() + 2, y.dims.end(), y.global.begin() + 2)) {
    return attributes;
  }
  const std::vector<int64_t> whole = attributes.Ints("pads", std::vector<int64_t>(2 * spatial, 0)),
                             strides = attributes.Ints("strides", std::vector<int64_t>(spatial, 1)),
                             dilations =
                                 attributes.Ints("dilations", std::vector<int64_t>(spatial, 1));
  std::vector<int64_t> pads = whole;
  for (size_t i = 0; i < spatial; ++i) {
    const size_t d = 2 + i;
    const int64_t begin = y.offset[d] * strides[i] - whole[i];
    const int64_t end = begin + (y.dims[d] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1;
    pads[i] = std::max<int64_t>(0, x.offset[d] - begin);
    // With ceil_mode the last window may extend beyond the padding, which does not grow.
    pads[spatial + i] = std::clamp<int64_t>(end - x.offset[d] - x.dims[d], 0, whole[spatial + i]);
  }
  attributes.Set("pads", std::move(pads));
  return attributes;
}

}  // namespace espalier
