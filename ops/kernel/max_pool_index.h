// ONNX's flat index of an element of x[N, C, H, W], which max_pool_indices returns and max_unpool
// takes, for the planes of a shard. Runs on host and device.
#pragma once

#include "ops/kernel/host_device.h"
#include "ops/tensor/view.h"

namespace espalier {

struct MaxPoolIndex {
  int64_t height, width;
  int64_t channels, whole_channels;  // of the shard, of the whole tensor
  int64_t first_sample, first_channel;
  bool column_major = false;

  explicit MaxPoolIndex(const TensorSpec& x)
      : height(x.dims[2]),
        width(x.dims[3]),
        channels(x.dims[1]),
        whole_channels(x.global.empty() ? x.dims[1] : x.global[1]),
        first_sample(x.offset.empty() ? 0 : x.offset[0]),
        first_channel(x.offset.empty() ? 0 : x.offset[1]) {}

  // The index of the first element of the shard's plane number `plane`.
  ESPALIER_HOST_DEVICE int64_t Start(int64_t plane) const {
    const int64_t sample = first_sample + plane / channels;
    return (sample * whole_channels + first_channel + plane % channels) * height * width;
  }
  // Converts the row-major index of an element in its plane to its offset from Start, and back.
  ESPALIER_HOST_DEVICE int64_t FromRowMajor(int64_t at) const {
    return column_major ? at / width + at % width * height : at;
  }
  ESPALIER_HOST_DEVICE int64_t ToRowMajor(int64_t at) const {
    return column_major ? at / height + at % height * width : at;
  }
};

}  // namespace espalier
