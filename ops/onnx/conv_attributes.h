// Kernel sizes, strides and pads of convolutions and pools.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/onnx/translator.h"

namespace espalier::onnx_import {

// One value per spatial dimension; pads are all begins, then all ends.
struct ConvAttributes {
  std::vector<int64_t> kernel, strides, dilations, pads;

  int dims() const { return static_cast<int>(kernel.size()); }
};

// Reads the attributes of a convolution or pool over `spatial`; `kernel` is what kernel_shape must
// be (empty: the attribute says it). False after an error.
bool ReadConvAttributes(Translator& t, const Dims& spatial, std::vector<int64_t> kernel, ConvAttributes* attributes);

// Positive integers, `count` of them; otherwise an error that names the attribute.
bool ExpectPositive(Translator& t, const char* name, const std::vector<int64_t>& values,
                    size_t count);

}  // namespace espalier::onnx_import
