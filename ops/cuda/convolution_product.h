// Computes the product of a convolution by cuDNN, y = x * weight, and its two gradients. Algorithms
// are chosen when the kernel is made, among the deterministic ones that need no more than 1 GiB of
// workspace; f32 runs in f32 (no TF32). cuDNN pads both sides alike: other pads are laid out in the
// workspace.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <vector>

#include "ops/cuda/runtime/device_context.h"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace cuda_convolution {

// Owns the descriptors of x, weight, y and the convolution.
class Descriptors {
 public:
  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors();

  // `pads`: one per spatial dimension.
  KernelStatus Set(DType dtype, const Dims& x_dims, const Dims& w_dims, const Dims& y_dims,
                   const Attributes& a, const std::vector<int64_t>& pads);

  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;

 private:
  static cudnnStatus_t SetTensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type,
                                 const Dims& dims);
};

// y = x * weight and its two gradients, each prepared before it is run. Operands are dense; the
// workspace is the kernel's.
class Product {
 public:
  Product(DeviceContexts& contexts, WorkspaceLayout* layout)
      : contexts_(contexts), layout_(layout) {}

  // Whether an operand is empty: there is nothing to multiply, and other methods must not be
  // called.
  bool empty() const { return empty_; }

  KernelStatus Describe(const Attributes& a, DType dtype, const Dims& x, const Dims& weight,
                        const Dims& y);
  KernelStatus PrepareForward();
  KernelStatus PrepareInputGradient();
  KernelStatus PrepareWeightGradient();

  KernelStatus Forward(const KernelArgs& args, const TensorView& x, const void* weight, void* y);
  KernelStatus InputGradient(const KernelArgs& args, const void* dy, const void* weight,
                             const TensorView& dx);
  KernelStatus WeightGradient(const KernelArgs& args, const TensorView& x, const void* dy,
                              void* dweight);

 private:
  int64_t PaddedBytes() const {
    return NumElements(padded_) * static_cast<int64_t>(SizeOf(dtype_));
  }

  // x, among its pads if they are uneven.
  KernelStatus Padded(const KernelArgs& args, const TensorView& x, const void** source) const;
  KernelStatus Handle(void* stream, cudnnHandle_t* handle) const;
  // The math type of the chosen algorithm. f32 uses CUDNN_FMA_MATH: the default would allow TF32.
  KernelStatus SetMathType(cudnnMathType_t type) const;

  DeviceContexts& contexts_;
  WorkspaceLayout* layout_;
  Descriptors descriptors_;
  cudnnHandle_t handle_ = nullptr;  // while it is prepared
  DType dtype_ = DType::kF32;
  bool empty_ = false, uneven_ = false;
  Dims padded_;  // dimensions of x with its uneven pads
  Dims start_;
  cudnnConvolutionFwdAlgoPerf_t forward_ = {};
  cudnnConvolutionBwdDataAlgoPerf_t data_ = {};
  cudnnConvolutionBwdFilterAlgoPerf_t filter_ = {};
  size_t padded_at_ = 0, forward_at_ = 0, data_at_ = 0, filter_at_ = 0;
};

}  // namespace cuda_convolution
}  // namespace espalier
