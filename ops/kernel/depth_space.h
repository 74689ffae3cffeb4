// depth_to_space and space_to_depth as a copy between two dense tensors. Standard library only.
#pragma once

#include <cstdint>

#include "ops/tensor/shape.h"

namespace espalier {

// Element [n, i, j, c, h, w] of both: pixel (i, j) of block (h, w) of an image with channels c.
struct DepthSpaceCopy {
  Dims dims, depth_strides, space_strides;

  // `space` are the dimensions of the tensor with the larger images. `channels_first`: channel c of
  // them is made of channels c * block^2 + i * block + j (mode CRD), otherwise of
  // (i * block + j) * C + c.
  DepthSpaceCopy(const Dims& space, int64_t block, bool channels_first) {
    const int64_t channels = space[1], height = space[2] / block, width = space[3] / block;
    dims = {space[0], block, block, channels, height, width};
    const int64_t plane = height * width, image = channels * block * block * plane;
    if (channels_first) {
      depth_strides = {image, block * plane, plane, block * block * plane, width, 1};
    } else {
      depth_strides = {image, block * channels * plane, channels * plane, plane, width, 1};
    }
    space_strides = {image, space[3], 1, space[2] * space[3], block * space[3], block};
  }
};

}  // namespace espalier
