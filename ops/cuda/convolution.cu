// Kernels of convolutions and transposed convolutions: products by cuDNN, then bias and activation.
#include <algorithm>
#include <vector>

#include "ops/cuda/convert.h"
#include "ops/cuda/convolution.h"
#include "ops/cuda/convolution_product.h"
#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/strided.h"
#include "ops/kernel/shard_padding.h"

namespace espalier {
namespace cuda_convolution {

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
