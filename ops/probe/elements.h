// Elements of tensors as numbers, and the boxes that parts of a probe consist of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/probe.pb.h"
#include "ops/tensor/half_conversion.h"
#include "ops/tensor/view.h"

namespace espalier::probe {

// Small enough for the first cache, so that several passes over a block read memory once.
constexpr int64_t kBlock = 2048;

// Calls visit(const T* elements, int64_t n) for consecutive blocks; T is float or double.
template <typename Visit>
void ForBlocks(const TensorView& view, Visit visit) {
  const int64_t elements = view.num_elements();
  const auto converted = [&](const auto* source, auto convert) {
    using To = decltype(convert(*source));
    To block[kBlock];
    for (int64_t start = 0; start < elements; start += kBlock) {
      const int64_t n = std::min(kBlock, elements - start);
      for (int64_t i = 0; i < n; ++i) block[i] = convert(source[start + i]);
      visit(static_cast<const To*>(block), n);
    }
  };
  const auto to_double = [](auto value) { return static_cast<double>(value); };
  switch (view.dtype()) {
    case DType::kF32:
      for (int64_t start = 0; start < elements; start += kBlock) {
        visit(static_cast<const float*>(view.as<float>() + start),
              std::min(kBlock, elements - start));
      }
      return;
    case DType::kBF16:
      return converted(view.as<uint16_t>(), BF16ToF32);
    case DType::kF16:
      return converted(view.as<uint16_t>(), F16ToF32);
    case DType::kI32:
      return converted(view.as<int32_t>(), to_double);
    case DType::kI64:
      return converted(view.as<int64_t>(), to_double);
    case DType::kI8:
      return converted(view.as<int8_t>(), to_double);
    case DType::kBool:
    case DType::kU8:
      return converted(view.as<uint8_t>(), to_double);
    case DType::kInvalid:
      return;
  }
}

// Calls visit(double) in order.
template <typename Visit>
void ForElements(const TensorView& view, Visit visit) {
  ForBlocks(view, [&](const auto* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) visit(static_cast<double>(x[i]));
  });
}

double Element(const TensorView& view, int64_t index);

// Row-major indices in a whole tensor of elements of a box.
class GlobalIndex {
 public:
  GlobalIndex(Dims offset, Dims dims, Dims global)
      : offset_(std::move(offset)), dims_(std::move(dims)), global_(std::move(global)) {}
  int64_t Of(int64_t local) const {
    int64_t index = 0, stride = 1;
    for (size_t d = dims_.size(); d-- > 0;) {
      index += (offset_[d] + local % dims_[d]) * stride;
      local /= dims_[d];
      stride *= global_[d];
    }
    return index;
  }

 private:
  Dims offset_, dims_, global_;
};

// Checks that the parts are of one tensor, that their boxes lie in it, and, unless `adds_up`, that
// these cover it exactly once.
absl::Status CheckParts(const std::vector<v1::ProbePart>& parts, bool adds_up);

// Joins checked boxes. `adds_up`: elements are added as double or int64, then rounded.
absl::StatusOr<v1::TensorValue> Assemble(const std::vector<v1::ProbePart>& parts, bool adds_up);

}  // namespace espalier::probe
