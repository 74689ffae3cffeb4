// depth_to_space and space_to_depth as a strided copy between dense tensors. Standard library only.
#pragma once

#include <cstdint>

#include "ops/tensor/shape.h"

namespace espalier {

// Both tensors as [n, i, j, c, h, w]: pixel (i, j) of block (h, w) of channel c of an image.
struct DepthSpaceCopy {
  Dims dims, depth_strides, space_strides;

  // `space`: dimensions of the tensor with the larger images. With `channels_first` (mode CRD)
  // channel c of them consists of channels c * block^2 + i * block + j, otherwise of channels (i *
  // block + j) * C + c.
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
