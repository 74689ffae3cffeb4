// Registration of kernels. Each kernel file defines `void Register<Name>Cuda(KernelRegistry&,
// DeviceContexts&)` and is found by ops/cuda/BUILD.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "ops/cuda/runtime/device_context.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Returns false and sets *refusal if `dtype` is not in `allowed`.
inline bool TakesType(DType dtype, std::initializer_list<DType> allowed, std::string* refusal) {
  for (DType type : allowed) {
    if (type == dtype) return true;
  }
  *refusal = std::string("element type ") + Name(dtype) + " is not supported on CUDA";
  return false;
}
inline bool TakesFloat(DType dtype, std::string* refusal) {
  return TakesType(dtype, {DType::kF32, DType::kBF16, DType::kF16}, refusal);
}
inline bool TakesNumber(DType dtype, std::string* refusal) {
  return TakesType(dtype, {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64},
                   refusal);
}

// Returns whether operand i is present.
inline bool Has(const std::vector<TensorSpec>& specs, size_t i) {
  return i < specs.size() && specs[i].dtype != DType::kInvalid;
}
inline bool Has(std::span<const TensorView> views, size_t i) {
  return i < views.size() && views[i].present();
}

// Returns the type of the first operand that is present (operands of a gradient may be absent).
inline DType TypeOf(const std::vector<TensorSpec>& specs) {
  for (const TensorSpec& spec : specs) {
    if (spec.dtype != DType::kInvalid) return spec.dtype;
  }
  return DType::kInvalid;
}

// Returns the product of all dimensions but the last.
inline int64_t RowsOf(const Dims& dims) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < dims.size(); ++d) rows *= dims[d];
  return rows;
}

// Blocks inside a kernel's workspace, 256-byte aligned relative to its start.
class WorkspaceLayout {
 public:
  size_t Add(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};
template <typename T = void>
T* WorkspaceAt(const KernelArgs& args, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(args.workspace) + offset);
}

}  // namespace espalier
