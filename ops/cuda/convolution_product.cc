#include "ops/cuda/convolution_product.h"

#include <algorithm>

#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/cudnn_status.h"
#include "ops/cuda/strided.h"

namespace espalier {
namespace cuda_convolution {
namespace {

constexpr size_t kMaxWorkspace = size_t{1} << 30;

cudnnDataType_t CudnnType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    case DType::kF16:
      return CUDNN_DATA_HALF;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

// cuDNN needs at least two spatial dimensions: prepends one of size 1 to a single one.
std::vector<int> CudnnDims(const Dims& dims) {
  std::vector<int> out(dims.begin(), dims.end());
  if (out.size() == 3) out.insert(out.begin() + 2, 1);
  return out;
}

std::vector<int> CudnnList(const std::vector<int64_t>& values, int filler) {
  std::vector<int> out(values.begin(), values.end());
  if (out.size() == 1) out.insert(out.begin(), filler);
  return out;
}

// The first of cuDNN's suggestions, fastest first, that is deterministic and fits.
template <typename Perf>
bool Choose(const std::vector<Perf>& suggestions, int returned, DType dtype, Perf* chosen) {
  for (int i = 0; i < returned; ++i) {
    const Perf& perf = suggestions[i];
    if (perf.status != CUDNN_STATUS_SUCCESS || perf.determinism != CUDNN_DETERMINISTIC ||
        perf.memory > kMaxWorkspace) {
      continue;
    }
    if (dtype == DType::kF32 && perf.mathType != CUDNN_FMA_MATH &&
        perf.mathType != CUDNN_DEFAULT_MATH) {
      continue;
    }
    *chosen = perf;
    return true;
  }
  return false;
}

}  // namespace

Descriptors::~Descriptors() {
  if (x != nullptr) cudnnDestroyTensorDescriptor(x);
  if (y != nullptr) cudnnDestroyTensorDescriptor(y);
  if (weight != nullptr) cudnnDestroyFilterDescriptor(weight);
  if (convolution != nullptr) cudnnDestroyConvolutionDescriptor(convolution);
}

KernelStatus Descriptors::Set(DType dtype, const Dims& x_dims, const Dims& w_dims,
                              const Dims& y_dims, const Attributes& a,
                              const std::vector<int64_t>& pads) {
  const auto check = [](cudnnStatus_t s) { return CudnnStatus(s, "convolution: descriptor"); };
  const cudnnDataType_t type = CudnnType(dtype);
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateTensorDescriptor(&x)));
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateTensorDescriptor(&y)));
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateFilterDescriptor(&weight)));
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateConvolutionDescriptor(&convolution)));
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(SetTensor(x, type, x_dims)));
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(SetTensor(y, type, y_dims)));
  const std::vector<int> w = CudnnDims(w_dims);
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnSetFilterNdDescriptor(
      weight, type, CUDNN_TENSOR_NCHW, static_cast<int>(w.size()), w.data())));
  const std::vector<int64_t> ones(pads.size(), 1);
  const std::vector<int> both = CudnnList(pads, 0), strides = CudnnList(a.Ints("strides", ones), 1),
                         dilations = CudnnList(a.Ints("dilations", ones), 1);
  ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnSetConvolutionNdDescriptor(
      convolution, static_cast<int>(both.size()), both.data(), strides.data(), dilations.data(),
      CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT)));
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      check(cudnnSetConvolutionGroupCount(convolution, static_cast<int>(a.Int("groups", 1)))));
  return check(cudnnSetConvolutionMathType(
      convolution, dtype == DType::kF32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
}

cudnnStatus_t Descriptors::SetTensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type,
                                     const Dims& dims) {
  const std::vector<int> sizes = CudnnDims(dims);
  std::vector<int> strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
  return cudnnSetTensorNdDescriptor(tensor, type, static_cast<int>(sizes.size()), sizes.data(),
                                    strides.data());
}

KernelStatus Product::Describe(const Attributes& a, DType dtype, const Dims& x, const Dims& weight,
                               const Dims& y) {
  empty_ = NumElements(x) == 0 || NumElements(weight) == 0 || NumElements(y) == 0;
  if (empty_) return KernelStatus::Ok();
  const size_t spatial = x.size() - 2;
  const std::vector<int64_t> pads = a.Ints("pads", std::vector<int64_t>(2 * spatial, 0));
  std::vector<int64_t> both(pads.begin(), pads.begin() + spatial);
  dtype_ = dtype;
  padded_ = x;
  start_.assign(x.size(), 0);
  uneven_ = !std::equal(both.begin(), both.end(), pads.begin() + spatial);
  if (uneven_) {
    for (size_t d = 0; d < spatial; ++d) {
      padded_[2 + d] += pads[d] + pads[spatial + d];
      start_[2 + d] = pads[d];
      both[d] = 0;
    }
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(descriptors_.Set(dtype, padded_, weight, y, a, both));
  ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(nullptr, &handle_));
  padded_at_ = layout_->Add(uneven_ ? PaddedBytes() : 0);
  return KernelStatus::Ok();
}

KernelStatus Product::PrepareForward() {
  std::vector<cudnnConvolutionFwdAlgoPerf_t> suggestions(CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
  int returned = 0;
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
      cudnnGetConvolutionForwardAlgorithm_v7(
          handle_, descriptors_.x, descriptors_.weight, descriptors_.convolution, descriptors_.y,
          static_cast<int>(suggestions.size()), &returned, suggestions.data()),
      "convolution: choice of algorithm"));
  if (!Choose(suggestions, returned, dtype_, &forward_)) {
    return KernelStatus::Error("cuDNN has no deterministic algorithm for it");
  }
  forward_at_ = layout_->Add(forward_.memory);
  return KernelStatus::Ok();
}

KernelStatus Product::PrepareInputGradient() {
  std::vector<cudnnConvolutionBwdDataAlgoPerf_t> suggestions(CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
  int returned = 0;
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
      cudnnGetConvolutionBackwardDataAlgorithm_v7(
          handle_, descriptors_.weight, descriptors_.y, descriptors_.convolution, descriptors_.x,
          static_cast<int>(suggestions.size()), &returned, suggestions.data()),
      "convolution: choice of algorithm"));
  if (!Choose(suggestions, returned, dtype_, &data_)) {
    return KernelStatus::Error("cuDNN has no deterministic algorithm for the gradient of x");
  }
  data_at_ = layout_->Add(data_.memory);
  return KernelStatus::Ok();
}

KernelStatus Product::PrepareWeightGradient() {
  std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> suggestions(
      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
  int returned = 0;
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
      cudnnGetConvolutionBackwardFilterAlgorithm_v7(
          handle_, descriptors_.x, descriptors_.y, descriptors_.convolution, descriptors_.weight,
          static_cast<int>(suggestions.size()), &returned, suggestions.data()),
      "convolution: choice of algorithm"));
  if (!Choose(suggestions, returned, dtype_, &filter_)) {
    return KernelStatus::Error("cuDNN has no deterministic algorithm for the gradient of weight");
  }
  filter_at_ = layout_->Add(filter_.memory);
  return KernelStatus::Ok();
}

KernelStatus Product::Forward(const KernelArgs& args, const TensorView& x, const void* weight,
                              void* y) {
  const void* source = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Padded(args, x, &source));
  cudnnHandle_t handle = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(args.stream, &handle));
  ESPALIER_KERNEL_RETURN_IF_ERROR(SetMathType(forward_.mathType));
  const float one = 1, zero = 0;
  return CudnnStatus(cudnnConvolutionForward(handle, &one, descriptors_.x, source,
                                             descriptors_.weight, weight, descriptors_.convolution,
                                             forward_.algo, WorkspaceAt(args, forward_at_),
                                             forward_.memory, &zero, descriptors_.y, y),
                     "convolution");
}

KernelStatus Product::InputGradient(const KernelArgs& args, const void* dy, const void* weight,
                                    const TensorView& dx) {
  void* target = uneven_ ? WorkspaceAt(args, padded_at_) : dx.data;
  cudnnHandle_t handle = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(args.stream, &handle));
  ESPALIER_KERNEL_RETURN_IF_ERROR(SetMathType(data_.mathType));
  const float one = 1, zero = 0;
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
      cudnnConvolutionBackwardData(
          handle, &one, descriptors_.weight, weight, descriptors_.y, dy, descriptors_.convolution,
          data_.algo, WorkspaceAt(args, data_at_), data_.memory, &zero, descriptors_.x, target),
      "convolution: gradient of x"));
  if (!uneven_) return KernelStatus::Ok();
  const BoxCopy box{target,    dx.data, dtype_, padded_, dx.dims(), start_, Dims(start_.size(), 0),
                    dx.dims(), false};
  return CopyBoxOnStream(box, static_cast<cudaStream_t>(args.stream));
}

KernelStatus Product::WeightGradient(const KernelArgs& args, const TensorView& x, const void* dy,
                                     void* dweight) {
  const void* source = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Padded(args, x, &source));
  cudnnHandle_t handle = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(args.stream, &handle));
  ESPALIER_KERNEL_RETURN_IF_ERROR(SetMathType(filter_.mathType));
  const float one = 1, zero = 0;
  return CudnnStatus(cudnnConvolutionBackwardFilter(
                         handle, &one, descriptors_.x, source, descriptors_.y, dy,
                         descriptors_.convolution, filter_.algo, WorkspaceAt(args, filter_at_),
                         filter_.memory, &zero, descriptors_.weight, dweight),
                     "convolution: gradient of weight");
}

KernelStatus Product::Padded(const KernelArgs& args, const TensorView& x,
                             const void** source) const {
  *source = x.data;
  if (!uneven_) return KernelStatus::Ok();
  void* buffer = WorkspaceAt(args, padded_at_);
  *source = buffer;
  ESPALIER_KERNEL_RETURN_IF_ERROR(FillOnStream(buffer, dtype_, NumElements(padded_), 0,
                                               static_cast<cudaStream_t>(args.stream)));
  const BoxCopy box{x.data, buffer,   dtype_, x.dims(), padded_, Dims(start_.size(), 0),
                    start_, x.dims(), false};
  return CopyBoxOnStream(box, static_cast<cudaStream_t>(args.stream));
}

KernelStatus Product::Handle(void* stream, cudnnHandle_t* handle) const {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
  return context->Cudnn(stream, handle);
}

KernelStatus Product::SetMathType(cudnnMathType_t type) const {
  if (dtype_ == DType::kF32) return KernelStatus::Ok();
  return CudnnStatus(cudnnSetConvolutionMathType(descriptors_.convolution, type),
                     "cudnnSetConvolutionMathType");
}

}  // namespace cuda_convolution
}  // namespace espalier
