// What the inputs of an ONNX file are called, before it is imported.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/tensor/shape.h"

namespace espalier {

struct OnnxInput {
  std::string name;
  DType dtype = DType::kInvalid;  // kInvalid: one that Espalier does not have
  std::optional<Dims> dims;       // -1: symbolic; nullopt: not even the rank is known
};

// Returns the inputs that have no initializer, in their order. InvalidArgument if `bytes` is no
// ONNX model.
absl::StatusOr<std::vector<OnnxInput>> OnnxInputsOf(const std::string& bytes);

}  // namespace espalier
