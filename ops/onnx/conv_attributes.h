// Attributes of convolutions and pools: kernel sizes, strides, dilations and pads.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/onnx/translator.h"

namespace espalier::onnx_import {

// One value per spatial dimension; pads holds all begins, then all ends.
struct ConvAttributes {
  std::vector<int64_t> kernel, strides, dilations, pads;

  int dims() const { return static_cast<int>(kernel.size()); }
};

// Reads the attributes of a convolution or pool over `spatial`. If `kernel` is not empty,
// kernel_shape must equal it. Returns false after an error.
bool ReadConvAttributes(Translator& t, const Dims& spatial, std::vector<int64_t> kernel,
                        ConvAttributes* attributes);

// Checks for `count` positive integers; fails with the attribute's name otherwise.
bool ExpectPositive(Translator& t, const char* name, const std::vector<int64_t>& values,
                    size_t count);

}  // namespace espalier::onnx_import
