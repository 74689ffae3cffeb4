// The initial elements of a parameter that its graph does not hold.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "ops/tensor/shape.h"

namespace espalier {

// Copies `bytes` bytes from `offset` on of a tensor's elements, little-endian and row-major, to
// `out`. Both are multiples of an element's size. Errors name the tensor. Thread-safe.
using ElementReader = std::function<absl::Status(int64_t offset, int64_t bytes, char* out)>;

// Elements are read when they are needed, in parts, so that a model larger than the memory can be
// passed on.
struct InitialValue {
  std::string name;  // of a parameter whose initializer is kStored
  TensorType type;
  ElementReader read;
};

inline ElementReader ReaderOfBytes(std::string elements) {
  return [elements = std::make_shared<const std::string>(std::move(elements))](
             int64_t offset, int64_t bytes, char* out) {
    std::memcpy(out, elements->data() + offset, static_cast<size_t>(bytes));
    return absl::OkStatus();
  };
}

}  // namespace espalier
