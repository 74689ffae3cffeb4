#include "ops/onnx/conv_attributes.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace espalier::onnx_import {

bool ExpectPositive(Translator& t, const char* name, const std::vector<int64_t>& values,
                    size_t count) {
  // Keeps sizes computed from the attributes far from overflow.
  const bool good = values.size() == count &&
                    std::all_of(values.begin(), values.end(),
                                [](int64_t v) { return v > 0 && v < (int64_t{1} << 30); });
  if (!good) t.Fail(absl::StrCat("attribute '", name, "' must be ", count, " positive integers"));
  return good && t.ok();
}

bool ReadConvAttributes(Translator& t, const Dims& spatial, std::vector<int64_t> kernel,
                        ConvAttributes* attributes) {
  const size_t n = spatial.size();
  const std::vector<int64_t> ones(n, 1);
  attributes->kernel = t.Ints("kernel_shape", kernel);
  attributes->strides = t.Ints("strides", ones);
  attributes->dilations = t.Ints("dilations", ones);
  if (!ExpectPositive(t, "kernel_shape", attributes->kernel, n) ||
      !ExpectPositive(t, "strides", attributes->strides, n) ||
      !ExpectPositive(t, "dilations", attributes->dilations, n)) {
    return false;
  }
  if (!kernel.empty() && kernel != attributes->kernel) {
    t.Fail(absl::StrCat("attribute 'kernel_shape' is ", ToString(attributes->kernel),
                        ", the weight's is ", ToString(kernel)));
    return false;
  }
  const std::string mode = t.String("auto_pad", "NOTSET");
  attributes->pads.assign(2 * n, 0);
  if (mode == "NOTSET") {
    attributes->pads = t.Ints("pads", attributes->pads);
    if (attributes->pads.size() != 2 * n) {
      t.Fail(absl::StrCat("attribute 'pads' must be ", 2 * n, " integers"));
    }
  } else if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
    for (size_t d = 0; d < n; ++d) {
      const int64_t stride = attributes->strides[d];
      const int64_t out = (spatial[d] + stride - 1) / stride;
      const int64_t window = (attributes->kernel[d] - 1) * attributes->dilations[d] + 1;
      const int64_t total = std::max<int64_t>(0, (out - 1) * stride + window - spatial[d]);
      attributes->pads[d] = mode == "SAME_UPPER" ? total / 2 : (total + 1) / 2;
      attributes->pads[d + n] = total - attributes->pads[d];
    }
  } else if (mode != "VALID") {
    t.Fail(absl::StrCat("attribute 'auto_pad' is '", mode,
                        "', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"));
  }
  return t.ok();
}

}  // namespace espalier::onnx_import
