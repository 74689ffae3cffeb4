// Algorithms are chosen when the kernel is made, among the deterministic ones that need no more
// than kMaxWorkspace; f32 runs in f32 (no TF32). cuDNN pads both sides alike: other pads are laid
// out in the workspace.
#include <algorithm>
#include <vector>

#include "ops/cuda/convert.h"
#include "ops/cuda/convolution.h"
#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/cudnn_status.h"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/strided.h"
#include "ops/kernel/shard_padding.h"

namespace espalier {
namespace cuda_convolution {

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

  // `pads`: one per spatial dimension.
  KernelStatus Set(DType dtype, const Dims& x_dims, const Dims& w_dims, const Dims& y_dims,
                   const Attributes& a, const std::vector<int64_t>& pads) {
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
    const std::vector<int> both = CudnnList(pads, 0),
                           strides = CudnnList(a.Ints("strides", ones), 1),
                           dilations = CudnnList(a.Ints("dilations", ones), 1);
    ESPALIER_KERNEL_RETURN_IF_ERROR(check(cudnnSetConvolutionNdDescriptor(
        convolution, static_cast<int>(both.size()), both.data(), strides.data(), dilations.data(),
        CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT)));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        check(cudnnSetConvolutionGroupCount(convolution, static_cast<int>(a.Int("groups", 1)))));
    return check(cudnnSetConvolutionMathType(
        convolution, dtype == DType::kF32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
  }

  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;

 private:
  static cudnnStatus_t SetTensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type,
                                 const Dims& dims) {
    const std::vector<int> sizes = CudnnDims(dims);
    std::vector<int> strides(sizes.size(), 1);
    for (size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
    return cudnnSetTensorNdDescriptor(tensor, type, static_cast<int>(sizes.size()), sizes.data(),
                                      strides.data());
  }
};

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

  KernelStatus PrepareForward() {
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

  KernelStatus PrepareInputGradient() {
    std::vector<cudnnConvolutionBwdDataAlgoPerf_t> suggestions(
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
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

  KernelStatus PrepareWeightGradient() {
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

  KernelStatus Forward(const KernelArgs& args, const TensorView& x, const void* weight, void* y) {
    const void* source = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Padded(args, x, &source));
    cudnnHandle_t handle = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Handle(args.stream, &handle));
    ESPALIER_KERNEL_RETURN_IF_ERROR(SetMathType(forward_.mathType));
    const float one = 1, zero = 0;
    return CudnnStatus(cudnnConvolutionForward(
                           handle, &one, descriptors_.x, source, descriptors_.weight, weight,
                           descriptors_.convolution, forward_.algo, WorkspaceAt(args, forward_at_),
                           forward_.memory, &zero, descriptors_.y, y),
                       "convolution");
  }

  KernelStatus InputGradient(const KernelArgs& args, const void* dy, const void* weight,
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
    const BoxCopy box{
        target,    dx.data, dtype_, padded_, dx.dims(), start_, Dims(start_.size(), 0),
        dx.dims(), false};
    return CopyBoxOnStream(box, StreamOf(args));
  }

  KernelStatus WeightGradient(const KernelArgs& args, const TensorView& x, const void* dy,
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

 private:
  int64_t PaddedBytes() const {
    return NumElements(padded_) * static_cast<int64_t>(SizeOf(dtype_));
  }

  // x, among its pads if they are uneven.
  KernelStatus Padded(const KernelArgs& args, const TensorView& x, const void** source) const {
    *source = x.data;
    if (!uneven_) return KernelStatus::Ok();
    void* buffer = WorkspaceAt(args, padded_at_);
    *source = buffer;
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        FillOnStream(buffer, dtype_, NumElements(padded_), 0, StreamOf(args)));
    const BoxCopy box{x.data, buffer,   dtype_, x.dims(), padded_, Dims(start_.size(), 0),
                      start_, x.dims(), false};
    return CopyBoxOnStream(box, StreamOf(args));
  }

  KernelStatus Handle(void* stream, cudnnHandle_t* handle) const {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
    return context->Cudnn(stream, handle);
  }

  // The math type of the chosen algorithm. f32 uses CUDNN_FMA_MATH: the default would allow TF32.
  KernelStatus SetMathType(cudnnMathType_t type) const {
    if (dtype_ == DType::kF32) return KernelStatus::Ok();
    return CudnnStatus(cudnnSetConvolutionMathType(descriptors_.convolution, type),
                       "cudnnSetConvolutionMathType");
  }

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

template <typename T>
struct ValueAt {
  const T* x;
  __device__ float operator()(int64_t i) const { return ToFloat(x[i]); }
};

KernelStatus Zero(const TensorView& view, cudaStream_t stream) {
  return FillOnStream(view.data, view.dtype(), view.num_elements(), 0, stream);
}

template <typename T>
ChannelBias<T> BiasOf(const KernelArgs& args, const TensorView& y) {
  int64_t inner = 1;
  for (size_t d = 2; d < y.dims().size(); ++d) inner *= y.dims()[d];
  return {Has(args.inputs, 2) ? args.inputs[2].as<T>() : nullptr, y.dims()[1], inner};
}

// y = f(y + bias), where there is anything to do.
KernelStatus Finish(const KernelArgs& args, Activation activation, const TensorView& y) {
  if (!Has(args.inputs, 2) && activation == Activation::kNone) return KernelStatus::Ok();
  return DispatchFloat(y.dtype(), "convolution", [&](auto type) {
    using T = typename decltype(type)::T;
    return DispatchActivation(activation, [&](auto f, auto) {
      return ForEach(
          y.num_elements(),
          BiasThenActivate<T, T, decltype(f)>{y.as<T>(), BiasOf<T>(args, y), y.as<T>(), f},
          StreamOf(args), "convolution");
    });
  });
}

// Sums of dy per channel.
class BiasGradient {
 public:
  void Prepare(const Dims& dy, WorkspaceLayout* layout) {
    std::vector<bool> summed(dy.size(), true);
    summed[1] = false;
    shape_ = ReduceShape::Make(dy, summed);
    at_ = layout->Add(shape_.WorkspaceBytes());
  }
  KernelStatus Run(const KernelArgs& args, const TensorView& dy, const TensorView& dbias) const {
    return DispatchFloat(dy.dtype(), "convolution", [&](auto type) {
      using T = typename decltype(type)::T;
      return Reduce(shape_, ValueAt<T>{dy.as<T>()}, StoreScaled<T>{dbias.as<T>(), 1.0f},
                    WorkspaceAt(args, at_), StreamOf(args), "convolution: gradient of bias");
    });
  }

 private:
  ReduceShape shape_;
  size_t at_ = 0;
};

class ConvolutionKernel : public Kernel {
 public:
  explicit ConvolutionKernel(DeviceContexts& contexts) : product_(contexts, &layout_) {}
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  WorkspaceLayout layout_;
  Product product_;
};

Attributes PartOf(const KernelSpec& spec, const TensorSpec& y) {
  const Dims& weight = spec.inputs[1].dims;
  return ShardAttributes(spec.attributes, spec.inputs[0], y,
                         Dims(weight.begin() + 2, weight.end()));
}

// x, weight, bias? -> y
class Forward : public ConvolutionKernel {
 public:
  using ConvolutionKernel::ConvolutionKernel;

  KernelStatus Prepare(const KernelSpec& spec) {
    activation_ = ActivationOf(spec.attributes);
    ESPALIER_KERNEL_RETURN_IF_ERROR(product_.Describe(PartOf(spec, spec.outputs[0]),
                                                      spec.inputs[0].dtype, spec.inputs[0].dims,
                                                      spec.inputs[1].dims, spec.outputs[0].dims));
    return product_.empty() ? KernelStatus::Ok() : product_.PrepareForward();
  }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView& y = args.outputs[0];
    if (!y.present() || y.num_elements() == 0) return KernelStatus::Ok();
    if (product_.empty()) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(y, StreamOf(args)));
    } else {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          product_.Forward(args, args.inputs[0], args.inputs[1].data, y.data));
    }
    return Finish(args, activation_, y);
  }

 private:
  Activation activation_ = Activation::kNone;
};

// x, weight, bias?, y?, dy -> dx, dweight, dbias
class Backward : public ConvolutionKernel {
 public:
  using ConvolutionKernel::ConvolutionKernel;

  KernelStatus Prepare(const KernelSpec& spec) {
    const TensorSpec &x = spec.inputs[0], &dy = spec.inputs[4];
    activation_ = ActivationOf(spec.attributes);
    bias_.Prepare(dy.dims, &layout_);
    if (activation_ != Activation::kNone) dz_at_ = layout_.Add(dy.bytes());
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        product_.Describe(PartOf(spec, dy), x.dtype, x.dims, spec.inputs[1].dims, dy.dims));
    if (product_.empty()) return KernelStatus::Ok();
    if (Recomputes()) ESPALIER_KERNEL_RETURN_IF_ERROR(product_.PrepareForward());
    ESPALIER_KERNEL_RETURN_IF_ERROR(product_.PrepareInputGradient());
    return product_.PrepareWeightGradient();
  }

  KernelStatus Run(const KernelArgs& args) override {
    TensorView dz = args.inputs[4];
    if (activation_ != Activation::kNone && dz.num_elements() > 0) {
      dz.data = WorkspaceAt(args, dz_at_);
      ESPALIER_KERNEL_RETURN_IF_ERROR(UndoActivation(args, dz));
    }
    for (size_t i = 0; i < 2; ++i) {
      if (!Has(args.outputs, i)) continue;
      const TensorView& target = args.outputs[i];
      if (product_.empty()) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(target, StreamOf(args)));
      } else if (i == 0) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            product_.InputGradient(args, dz.data, args.inputs[1].data, target));
      } else {
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            product_.WeightGradient(args, args.inputs[0], dz.data, target.data));
      }
    }
    return Has(args.outputs, 2) ? bias_.Run(args, dz, args.outputs[2]) : KernelStatus::Ok();
  }

 private:
  bool Recomputes() const {
    return activation_ != Activation::kNone && !GradientUsesOutput(activation_);
  }

  KernelStatus UndoActivation(const KernelArgs& args, const TensorView& dz) {
    const void* saved = dz.data;
    if (!Recomputes()) {
      saved = args.inputs[3].data;
    } else if (product_.empty()) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(dz, StreamOf(args)));
    } else {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          product_.Forward(args, args.inputs[0], args.inputs[1].data, dz.data));
    }
    return DispatchFloat(dz.dtype(), "convolution", [&](auto type) {
      using T = typename decltype(type)::T;
      ChannelBias<T> bias = BiasOf<T>(args, dz);
      if (!Recomputes()) bias.bias = nullptr;
      return DispatchActivation(activation_, [&](auto, auto gradient) {
        return ForEach(
            dz.num_elements(),
            BeforeActivation<T, T, decltype(gradient)>{
                static_cast<const T*>(saved), bias, args.inputs[4].as<T>(), dz.as<T>(), gradient},
            StreamOf(args), "convolution: gradient of the activation");
      });
    });
  }

  Activation activation_ = Activation::kNone;
  BiasGradient bias_;
  size_t dz_at_ = 0;
};

// x, weight, bias? -> y: the gradient of the convolution that maps y to x.
class TransposedForward : public ConvolutionKernel {
 public:
  using ConvolutionKernel::ConvolutionKernel;

  KernelStatus Prepare(const KernelSpec& spec) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(product_.Describe(spec.attributes, spec.inputs[0].dtype,
                                                      spec.outputs[0].dims, spec.inputs[1].dims,
                                                      spec.inputs[0].dims));
    return product_.empty() ? KernelStatus::Ok() : product_.PrepareInputGradient();
  }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView& y = args.outputs[0];
    if (!y.present() || y.num_elements() == 0) return KernelStatus::Ok();
    if (product_.empty()) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(y, StreamOf(args)));
    } else {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          product_.InputGradient(args, args.inputs[0].data, args.inputs[1].data, y));
    }
    return Finish(args, Activation::kNone, y);
  }
};

// x, weight, dy -> dx, dweight, dbias
class TransposedBackward : public ConvolutionKernel {
 public:
  using ConvolutionKernel::ConvolutionKernel;

  KernelStatus Prepare(const KernelSpec& spec) {
    bias_.Prepare(spec.inputs[2].dims, &layout_);
    ESPALIER_KERNEL_RETURN_IF_ERROR(product_.Describe(spec.attributes, spec.inputs[0].dtype,
                                                      spec.inputs[2].dims, spec.inputs[1].dims,
                                                      spec.inputs[0].dims));
    if (product_.empty()) return KernelStatus::Ok();
    ESPALIER_KERNEL_RETURN_IF_ERROR(product_.PrepareForward());
    return product_.PrepareWeightGradient();
  }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView& dy = args.inputs[2];
    for (size_t i = 0; i < 2; ++i) {
      if (!Has(args.outputs, i)) continue;
      const TensorView& target = args.outputs[i];
      if (product_.empty()) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(target, StreamOf(args)));
      } else if (i == 0) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            product_.Forward(args, dy, args.inputs[1].data, target.data));
      } else {
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            product_.WeightGradient(args, dy, args.inputs[0].data, target.data));
      }
    }
    return Has(args.outputs, 2) ? bias_.Run(args, dy, args.outputs[2]) : KernelStatus::Ok();
  }

 private:
  BiasGradient bias_;
};

template <typename K>
KernelFactory Factory(DeviceContexts& contexts) {
  return [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    if (spec.batch_invariant) {
      *refusal = "convolutions have no batch-invariant kernel";
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

}  // namespace cuda_convolution

void AddConvolution(KernelRegistry& registry, DeviceContexts& contexts, const char* name) {
  using namespace cuda_convolution;
  registry.Add(name, InNarrowest(Factory<Forward>(contexts)));
  registry.Add(std::string(name) + "_grad", InNarrowest(Factory<Backward>(contexts)));
}

void AddTransposedConvolution(KernelRegistry& registry, DeviceContexts& contexts,
                              const char* name) {
  using namespace cuda_convolution;
  registry.Add(name, InNarrowest(Factory<TransposedForward>(contexts)));
  registry.Add(std::string(name) + "_grad", InNarrowest(Factory<TransposedBackward>(contexts)));
}

}  // namespace espalier
