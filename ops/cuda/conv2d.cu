// Convolution by cuDNN. Algorithms are chosen when the kernel is made, among the deterministic ones
// that need no more than kMostWorkspace; f32 runs in f32 (no TF32). cuDNN pads both sides alike:
// other pads are laid out in the workspace.
#include <algorithm>
#include <vector>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"
#include "ops/cuda/strided.h"

namespace espalier {
namespace {

constexpr size_t kMostWorkspace = size_t{1} << 30;

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

// Owns the descriptors of x, weight, y and the convolution.
class Descriptors {
 public:
  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    if (x != nullptr) cudnnDestroyTensorDescriptor(x);
    if (y != nullptr) cudnnDestroyTensorDescriptor(y);
    if (weight != nullptr) cudnnDestroyFilterDescriptor(weight);
    if (convolution != nullptr) cudnnDestroyConvolutionDescriptor(convolution);
  }

  // `pads`: vertical, horizontal.
  KernelStatus Set(DType dtype, const Dims& x_dims, const Dims& w_dims, const Dims& y_dims,
                   const Attributes& a, const int pads[2]) {
    const auto check = [](cudnnStatus_t s) { return CudnnStatus(s, "conv2d: descriptor"); };
    const auto dim = [](const Dims& dims, int d) { return static_cast<int>(dims[d]); };
    const cudnnDataType_t type = CudnnType(dtype);
    const std::vector<int64_t> strides = a.Ints("strides", {1, 1});
    const std::vector<int64_t> dilations = a.Ints("dilations", {1, 1});
    ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateTensorDescriptor(&x)));
    ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateTensorDescriptor(&y)));
    ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateFilterDescriptor(&weight)));
    ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnCreateConvolutionDescriptor(&convolution)));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        check(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, type, dim(x_dims, 0), dim(x_dims, 1),
                                         dim(x_dims, 2), dim(x_dims, 3))));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        check(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, type, dim(y_dims, 0), dim(y_dims, 1),
                                         dim(y_dims, 2), dim(y_dims, 3))));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        check(cudnnSetFilter4dDescriptor(weight, type, CUDNN_TENSOR_NCHW, dim(w_dims, 0),
                                         dim(w_dims, 1), dim(w_dims, 2), dim(w_dims, 3))));
    ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnSetConvolution2dDescriptor(
        convolution, pads[0], pads[1], static_cast<int>(strides[0]), static_cast<int>(strides[1]),
        static_cast<int>(dilations[0]), static_cast<int>(dilations[1]), CUDNN_CROSS_CORRELATION,
        CUDNN_DATA_FLOAT)));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        check(cudnnSetConvolutionGroupCount(convolution, static_cast<int>(a.Int("groups", 1)))));
    return check(cudnnSetConvolutionMathType(
        convolution, dtype == DType::kF32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
  }

  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
};

// The first of cuDNN's suggestions, fastest first, that is deterministic and fits.
template <typename Perf>
bool Choose(const std::vector<Perf>& suggestions, int returned, DType dtype, Perf* chosen) {
  for (int i = 0; i < returned; ++i) {
    const Perf& perf = suggestions[i];
    if (perf.status != CUDNN_STATUS_SUCCESS || perf.determinism != CUDNN_DETERMINISTIC ||
        perf.memory > kMostWorkspace) {
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

template <typename T>
struct AddBias {
  const T* bias;
  T* y;
  int64_t channels, spatial;
  __device__ void operator()(int64_t i) const {
    y[i] = FromFloat<T>(ToFloat(y[i]) + ToFloat(bias[i / spatial % channels]));
  }
};

template <typename T>
struct ValueAt {
  const T* x;
  __device__ float operator()(int64_t i) const { return ToFloat(x[i]); }
};

// What forward and backward have in common: descriptors, and x with uneven pads laid out.
class ConvolutionKernel : public Kernel {
 public:
  explicit ConvolutionKernel(DeviceContexts& contexts) : contexts_(contexts) {}
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  KernelStatus Describe(const KernelSpec& spec, const Dims& y) {
    const Dims &x = spec.inputs[0].dims, &weight = spec.inputs[1].dims;
    dtype_ = spec.inputs[0].dtype;
    const std::vector<int64_t> pads = spec.attributes.Ints("pads", {0, 0, 0, 0});
    int both[2] = {static_cast<int>(pads[0]), static_cast<int>(pads[1])};
    padded_ = x;
    uneven_ = pads[0] != pads[2] || pads[1] != pads[3];
    if (uneven_) {
      both[0] = both[1] = 0;
      padded_[2] += pads[0] + pads[2];
      padded_[3] += pads[1] + pads[3];
      start_ = {0, 0, pads[0], pads[1]};
    }
    return descriptors_.Set(dtype_, padded_, weight, y, spec.attributes, both);
  }
  int64_t PaddedBytes() const {
    return NumElements(padded_) * static_cast<int64_t>(SizeOf(dtype_));
  }

  // x among its pads, in `buffer`.
  KernelStatus Pad(const TensorView& x, void* buffer, cudaStream_t stream) const {
    ESPALIER_KERNEL_RETURN_IF_ERROR(FillOnStream(buffer, dtype_, NumElements(padded_), 0, stream));
    BoxCopy box{x.data, buffer, dtype_, x.dims(), padded_, Dims(4, 0), start_, x.dims(), false};
    return CopyBoxOnStream(box, stream);
  }
  KernelStatus Crop(const void* buffer, const TensorView& x, cudaStream_t stream) const {
    BoxCopy box{buffer, x.data, dtype_, padded_, x.dims(), start_, Dims(4, 0), x.dims(), false};
    return CopyBoxOnStream(box, stream);
  }
  KernelStatus Handle(void* stream, cudnnHandle_t* handle) const {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
    return context->Cudnn(stream, handle);
  }

  // That of a chosen algorithm. f32 stays with CUDNN_FMA_MATH: the default would allow TF32.
  KernelStatus SetMathType(cudnnMathType_t type) const {
    if (dtype_ == DType::kF32) return KernelStatus::Ok();
    return CudnnStatus(cudnnSetConvolutionMathType(descriptors_.convolution, type),
                       "cudnnSetConvolutionMathType");
  }

  DeviceContexts& contexts_;
  Descriptors descriptors_;
  DType dtype_ = DType::kF32;
  bool uneven_ = false;
  Dims padded_;  // dimensions of x with its uneven pads
  Dims start_ = {0, 0, 0, 0};
  WorkspaceLayout layout_;
};

class Forward : public ConvolutionKernel {
 public:
  using ConvolutionKernel::ConvolutionKernel;

  KernelStatus Prepare(const KernelSpec& spec) {
    empty_ = spec.outputs[0].num_elements() == 0;
    no_sum_ = spec.inputs[0].num_elements() == 0 || spec.inputs[1].num_elements() == 0;
    if (empty_ || no_sum_) return KernelStatus::Ok();
    ESPALIER_KERNEL_RETURN_IF_ERROR(Describe(spec, spec.outputs[0].dims));
    cudnnHandle_t handle = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(nullptr, &handle));
    std::vector<cudnnConvolutionFwdAlgoPerf_t> suggestions(CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
    int returned = 0;
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
        cudnnGetConvolutionForwardAlgorithm_v7(
            handle, descriptors_.x, descriptors_.weight, descriptors_.convolution, descriptors_.y,
            static_cast<int>(suggestions.size()), &returned, suggestions.data()),
        "conv2d: choice of algorithm"));
    if (!Choose(suggestions, returned, dtype_, &algorithm_)) {
      return KernelStatus::Error("cuDNN has no deterministic algorithm for it");
    }
    padded_at_ = layout_.Add(uneven_ ? PaddedBytes() : 0);
    scratch_at_ = layout_.Add(algorithm_.memory);
    return KernelStatus::Ok();
  }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &x = args.inputs[0], &y = args.outputs[0];
    const cudaStream_t stream = StreamOf(args);
    if (empty_ || !y.present()) return KernelStatus::Ok();
    if (no_sum_) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(FillOnStream(y.data, y.dtype(), y.num_elements(), 0, stream));
    } else {
      const void* source = x.data;
      if (uneven_) {
        source = WorkspaceAt(args, padded_at_);
        ESPALIER_KERNEL_RETURN_IF_ERROR(Pad(x, WorkspaceAt(args, padded_at_), stream));
      }
      cudnnHandle_t handle = nullptr;
      ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(args.stream, &handle));
      const float one = 1, zero = 0;
      ESPALIER_KERNEL_RETURN_IF_ERROR(SetMathType(algorithm_.mathType));
      ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
          cudnnConvolutionForward(handle, &one, descriptors_.x, source, descriptors_.weight,
                                  args.inputs[1].data, descriptors_.convolution, algorithm_.algo,
                                  WorkspaceAt(args, scratch_at_), algorithm_.memory, &zero,
                                  descriptors_.y, y.data),
          "conv2d"));
    }
    if (!Has(args.inputs, 2)) return KernelStatus::Ok();
    return DispatchFloat(y.dtype(), "conv2d", [&](auto type) {
      using T = typename decltype(type)::T;
      return ForEach(
          y.num_elements(),
          AddBias<T>{args.inputs[2].as<T>(), y.as<T>(), y.dims()[1], y.dims()[2] * y.dims()[3]},
          stream, "conv2d");
    });
  }

 private:
  bool empty_ = false, no_sum_ = false;
  cudnnConvolutionFwdAlgoPerf_t algorithm_ = {};
  size_t padded_at_ = 0, scratch_at_ = 0;
};

// x, weight, dy -> dx, dweight, dbias
class Backward : public ConvolutionKernel {
 public:
  using ConvolutionKernel::ConvolutionKernel;

  KernelStatus Prepare(const KernelSpec& spec) {
    const Dims& dy = spec.inputs[2].dims;
    empty_ = spec.inputs[0].num_elements() == 0 || spec.inputs[1].num_elements() == 0 ||
             NumElements(dy) == 0;
    bias_ = ReduceShape::Make(dy, {true, false, true, true});
    bias_at_ = layout_.Add(bias_.WorkspaceBytes());
    if (empty_) return KernelStatus::Ok();
    ESPALIER_KERNEL_RETURN_IF_ERROR(Describe(spec, dy));
    cudnnHandle_t handle = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(nullptr, &handle));
    std::vector<cudnnConvolutionBwdDataAlgoPerf_t> data(CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
    int returned = 0;
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudnnStatus(cudnnGetConvolutionBackwardDataAlgorithm_v7(
                        handle, descriptors_.weight, descriptors_.y, descriptors_.convolution,
                        descriptors_.x, static_cast<int>(data.size()), &returned, data.data()),
                    "conv2d_grad: choice of algorithm"));
    if (!Choose(data, returned, dtype_, &data_)) {
      return KernelStatus::Error("cuDNN has no deterministic algorithm for the gradient of x");
    }
    std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> filter(
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
        cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            handle, descriptors_.x, descriptors_.y, descriptors_.convolution, descriptors_.weight,
            static_cast<int>(filter.size()), &returned, filter.data()),
        "conv2d_grad: choice of algorithm"));
    if (!Choose(filter, returned, dtype_, &filter_)) {
      return KernelStatus::Error("cuDNN has no deterministic algorithm for the gradient of weight");
    }
    padded_at_ = layout_.Add(uneven_ ? PaddedBytes() : 0);
    scratch_at_ = layout_.Add(std::max(data_.memory, filter_.memory));
    return KernelStatus::Ok();
  }

  KernelStatus Run(const KernelArgs& args) override {
    const cudaStream_t stream = StreamOf(args);
    if (empty_) {
      for (size_t i = 0; i < 2; ++i) {
        if (!Has(args.outputs, i)) continue;
        const TensorView& target = args.outputs[i];
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            FillOnStream(target.data, target.dtype(), target.num_elements(), 0, stream));
      }
    } else {
      cudnnHandle_t handle = nullptr;
      ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(args.stream, &handle));
      if (Has(args.outputs, 0)) ESPALIER_KERNEL_RETURN_IF_ERROR(InputGradient(args, handle));
      if (Has(args.outputs, 1)) ESPALIER_KERNEL_RETURN_IF_ERROR(WeightGradient(args, handle));
    }
    if (!Has(args.outputs, 2)) return KernelStatus::Ok();
    return DispatchFloat(dtype_, "conv2d_grad", [&](auto type) {
      using T = typename decltype(type)::T;
      return Reduce(bias_, ValueAt<T>{args.inputs[2].as<T>()},
                    StoreScaled<T>{args.outputs[2].as<T>(), 1.0f}, WorkspaceAt(args, bias_at_),
                    stream, "conv2d_grad");
    });
  }

 private:
  KernelStatus InputGradient(const KernelArgs& args, cudnnHandle_t handle) const {
    const TensorView& dx = args.outputs[0];
    void* target = uneven_ ? WorkspaceAt(args, padded_at_) : dx.data;
    const float one = 1, zero = 0;
    ESPALIER_KERNEL_RETURN_IF_ERROR(SetMathType(data_.mathType));
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(
        cudnnConvolutionBackwardData(handle, &one, descriptors_.weight, args.inputs[1].data,
                                     descriptors_.y, args.inputs[2].data, descriptors_.convolution,
                                     data_.algo, WorkspaceAt(args, scratch_at_), data_.memory,
                                     &zero, descriptors_.x, target),
        "conv2d_grad: gradient of x"));
    return uneven_ ? Crop(target, dx, StreamOf(args)) : KernelStatus::Ok();
  }

  KernelStatus WeightGradient(const KernelArgs& args, cudnnHandle_t handle) const {
    const void* source = args.inputs[0].data;
    if (uneven_) {
      source = WorkspaceAt(args, padded_at_);
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          Pad(args.inputs[0], WorkspaceAt(args, padded_at_), StreamOf(args)));
    }
    const float one = 1, zero = 0;
    ESPALIER_KERNEL_RETURN_IF_ERROR(SetMathType(filter_.mathType));
    return CudnnStatus(
        cudnnConvolutionBackwardFilter(handle, &one, descriptors_.x, source, descriptors_.y,
                                       args.inputs[2].data, descriptors_.convolution, filter_.algo,
                                       WorkspaceAt(args, scratch_at_), filter_.memory, &zero,
                                       descriptors_.weight, args.outputs[1].data),
        "conv2d_grad: gradient of weight");
  }

  bool empty_ = false;
  ReduceShape bias_;
  cudnnConvolutionBwdDataAlgoPerf_t data_ = {};
  cudnnConvolutionBwdFilterAlgoPerf_t filter_ = {};
  size_t bias_at_ = 0, padded_at_ = 0, scratch_at_ = 0;
};

template <typename K>
KernelFactory Factory(DeviceContexts& contexts) {
  return [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    if (spec.row_stable) {
      *refusal = "convolutions have no row-stable kernel";
      return nullptr;
    }
    auto kernel = std::make_unique<K>(contexts);
    if (const KernelStatus made = kernel->Prepare(spec); !made.ok()) {
      *refusal = made.error;
      return nullptr;
    }
    return kernel;
  };
}

}  // namespace

void RegisterConv2dCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add("conv2d", Factory<Forward>(contexts));
  registry.Add("conv2d_grad", Factory<Backward>(contexts));
}

}  // namespace espalier
