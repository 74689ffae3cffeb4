// linear. Training: cuBLAS for y, dx and dweight. Serving: MixedInputGemm for f32,
// BatchInvariantLinear for bf16 and f16.
#include "ops/cuda/convert.h"
#include "ops/cuda/gemm/batch_invariant_linear.h"
#include "ops/cuda/gemm/cublas_gemm.h"
#include "ops/cuda/gemm/mixed_input_gemm.h"
#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_linear {

template <typename T>
struct RepeatRow {
  const T* row;
  T* y;
  int64_t columns;
  __device__ void operator()(int64_t i) const { y[i] = row[i % columns]; }
};

template <typename T>
struct ValueAt {
  const T* x;
  __device__ float operator()(int64_t i) const { return ToFloat(x[i]); }
};

Gemm ProductOf(const TensorView& x, const TensorView& weight) {
  Gemm gemm;
  gemm.m = RowsOf(x.dims());
  gemm.n = weight.dims()[0];
  gemm.k = weight.dims()[1];
  gemm.a = {x.data, false, gemm.k, 0};
  gemm.b = {weight.data, true, gemm.k, 0};
  gemm.ldc = gemm.n;
  gemm.input = gemm.output = x.dtype();
  return gemm;
}

template <typename T>
ChannelBias<T> BiasOf(const KernelArgs& args, int64_t columns) {
  return {Has(args.inputs, 2) ? args.inputs[2].as<T>() : nullptr, columns, 1};
}

// z = x weight^T in f32, the bias not added.
KernelStatus ProductInF32(DeviceContexts& contexts, const KernelArgs& args, float* z) {
  Gemm gemm = ProductOf(args.inputs[0], args.inputs[1]);
  gemm.c = z;
  gemm.output = DType::kF32;
  return RunGemm(contexts, gemm, args.stream, "linear");
}

// Bytes of the f32 product that the activation needs in addition to y.
size_t WideBytes(const KernelSpec& spec, Activation activation) {
  if (activation == Activation::kNone || spec.inputs[0].dtype == DType::kF32) return 0;
  return static_cast<size_t>(spec.outputs[0].num_elements()) * sizeof(float);
}

KernelStatus ForwardActivated(DeviceContexts& contexts, const KernelArgs& args,
                              Activation activation) {
  const TensorView& y = args.outputs[0];
  float* z = y.dtype() == DType::kF32 ? y.as<float>() : static_cast<float*>(args.workspace);
  ESPALIER_KERNEL_RETURN_IF_ERROR(ProductInF32(contexts, args, z));
  return DispatchFloat(y.dtype(), "linear", [&](auto type) {
    using T = typename decltype(type)::T;
    return DispatchActivation(activation, [&](auto f, auto) {
      return ForEach(y.num_elements(),
                     BiasThenActivate<T, float, decltype(f)>{z, BiasOf<T>(args, y.dims().back()),
                                                             y.as<T>(), f},
                     StreamOf(args), "linear");
    });
  });
}

// Writes the bias to y first, exactly, then adds the product: one rounding.
KernelStatus Forward(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView& y = args.outputs[0];
  Gemm gemm = ProductOf(args.inputs[0], args.inputs[1]);
  if (Has(args.inputs, 2)) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(y.dtype(), "linear", [&](auto type) {
      using T = typename decltype(type)::T;
      return ForEach(y.num_elements(), RepeatRow<T>{args.inputs[2].as<T>(), y.as<T>(), gemm.n},
                     StreamOf(args), "linear");
    }));
    gemm.beta = 1.0f;
  }
  gemm.c = y.data;
  return RunGemm(contexts, gemm, args.stream, "linear");
}

// [rows, columns] summed over the rows.
ReduceShape ColumnSums(int64_t rows, int64_t columns) {
  return ReduceShape::Make({rows, columns}, {true, false});
}

// The layout of the gradient's workspace.
struct BackwardLayout {
  size_t partial = 0, dz = 0, z = 0, bytes = 0;

  BackwardLayout(const TensorSpec& dy, int64_t rows, int64_t out, Activation activation) {
    WorkspaceLayout layout;
    partial = layout.Add(ColumnSums(rows, out).WorkspaceBytes());
    if (activation != Activation::kNone) dz = layout.Add(static_cast<size_t>(dy.bytes()));
    if (activation != Activation::kNone && !GradientUsesOutput(activation)) {
      z = layout.Add(static_cast<size_t>(dy.num_elements()) * sizeof(float));
    }
    bytes = layout.bytes();
  }
};

// dz = dy times the activation's gradient, from y or from the product computed again.
KernelStatus UndoActivation(DeviceContexts& contexts, const KernelArgs& args, Activation activation,
                            float* z, const TensorView& dz) {
  const bool of_output = GradientUsesOutput(activation);
  if (!of_output) ESPALIER_KERNEL_RETURN_IF_ERROR(ProductInF32(contexts, args, z));
  return DispatchFloat(dz.dtype(), "linear_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    const T* dy = args.inputs[4].as<T>();
    return DispatchActivation(activation, [&](auto, auto gradient) {
      using G = decltype(gradient);
      if (of_output) {
        return ForEach(dz.num_elements(),
                       BeforeActivation<T, T, G>{
                           args.inputs[3].as<T>(), {nullptr, 1, 1}, dy, dz.as<T>(), gradient},
                       StreamOf(args), "linear_grad");
      }
      return ForEach(dz.num_elements(),
                     BeforeActivation<T, float, G>{z, BiasOf<T>(args, dz.dims().back()), dy,
                                                   dz.as<T>(), gradient},
                     StreamOf(args), "linear_grad");
    });
  });
}

// x, weight, bias?, y?, dy -> dx = dz weight, dweight = dz^T x, dbias = column sums of dz, where dz
// is dy before the activation
KernelStatus Backward(DeviceContexts& contexts, const KernelArgs& args, Activation activation) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1];
  TensorView dz = args.inputs[4];
  const int64_t rows = RowsOf(x.dims()), out = weight.dims()[0], in = weight.dims()[1];
  const BackwardLayout layout(dz.spec, rows, out, activation);
  if (activation != Activation::kNone) {
    dz.data = WorkspaceAt(args, layout.dz);
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        UndoActivation(contexts, args, activation, WorkspaceAt<float>(args, layout.z), dz));
  }
  Gemm gemm;
  gemm.input = dz.dtype();
  if (Has(args.outputs, 0)) {
    gemm.output = args.outputs[0].dtype();
    gemm.m = rows;
    gemm.n = in;
    gemm.k = out;
    gemm.a = {dz.data, false, out, 0};
    gemm.b = {weight.data, false, in, 0};
    gemm.c = args.outputs[0].data;
    gemm.ldc = in;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts, gemm, args.stream, "linear_grad"));
  }
  if (Has(args.outputs, 1)) {
    gemm.output = args.outputs[1].dtype();
    gemm.m = out;
    gemm.n = in;
    gemm.k = rows;
    gemm.a = {dz.data, true, out, 0};
    gemm.b = {x.data, false, in, 0};
    gemm.c = args.outputs[1].data;
    gemm.ldc = in;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts, gemm, args.stream, "linear_grad"));
  }
  if (!Has(args.outputs, 2)) return KernelStatus::Ok();
  return DispatchFloat(dz.dtype(), "linear_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return DispatchFloat(args.outputs[2].dtype(), "linear_grad", [&](auto result) {
      using R = typename decltype(result)::T;
      return Reduce(ColumnSums(rows, out), ValueAt<T>{dz.as<T>()},
                    StoreScaled<R>{args.outputs[2].as<R>(), 1.0f},
                    WorkspaceAt(args, layout.partial), StreamOf(args), "linear_grad");
    });
  });
}

// One matrix of the batch-invariant kernel for bf16 and f16.
KernelStatus RunStable(std::span<const TensorView> inputs, const TensorView& y,
                       Activation activation, const KernelArgs& args) {
  const TensorView &x = inputs[0], &weight = inputs[1];
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      BatchInvariantLinear({x.dtype(), RowsOf(x.dims()), weight.dims()[1], weight.dims()[0], x.data,
                            weight.data, Has(inputs, 2) ? inputs[2].data : nullptr, y.data},
                           StreamOf(args)));
  if (activation == Activation::kNone) return KernelStatus::Ok();
  return DispatchFloat(y.dtype(), "linear", [&](auto type) {
    using T = typename decltype(type)::T;
    return DispatchActivation(activation, [&](auto f, auto) {
      return ForEach(y.num_elements(),
                     BiasThenActivate<T, T, decltype(f)>{y.as<T>(), {nullptr, 1, 1}, y.as<T>(), f},
                     StreamOf(args), "linear");
    });
  });
}

}  // namespace cuda_linear

void RegisterLinearCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_linear;
  registry.SupportsHorizontalFusion("linear", {});
  registry.Add(
      "linear", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        if (!spec.batch_invariant) {
          *refusal =
              "the batch-invariant kernel is slower than cuBLAS where batch invariance is not "
              "required";
          return nullptr;
        }
        const Activation activation = ActivationOf(spec.attributes);
        if (spec.inputs[0].dtype == DType::kF32) {
          const int64_t rows = RowsOf(spec.inputs[0].dims), in = spec.inputs[0].dims.back();
          return MakeKernel(
              [activation](const KernelArgs& args) {
                return RunMixedInputGemm("linear", GemmWeightFormat::kF32, activation, args);
              },
              MixedInputGemmWorkspace(GemmWeightFormat::kF32, rows, in));
        }
        return MakeKernel([activation](const KernelArgs& args) {
          const size_t each = args.inputs.size() / args.outputs.size();
          for (size_t i = 0; i < args.outputs.size(); ++i) {
            ESPALIER_KERNEL_RETURN_IF_ERROR(
                RunStable(args.inputs.subspan(i * each, each), args.outputs[i], activation, args));
          }
          return KernelStatus::Ok();
        });
      });
  registry.Add("linear", InNarrowest([&contexts](const KernelSpec& spec,
                                                 std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 if (spec.batch_invariant) {
                   *refusal = "cuBLAS does not keep one order of summation for all numbers of rows";
                   return nullptr;
                 }
                 const Activation activation = ActivationOf(spec.attributes);
                 if (activation == Activation::kNone) {
                   return MakeKernel(
                       [&contexts](const KernelArgs& args) { return Forward(contexts, args); });
                 }
                 return MakeKernel(
                     [&contexts, activation](const KernelArgs& args) {
                       return ForwardActivated(contexts, args, activation);
                     },
                     WideBytes(spec, activation));
               }));
  // The gradients of f32 weights beside narrow rows are sums in f32, never rounded to the narrow
  // type.
  registry.Add(
      "linear_grad",
      InNarrowest(
          [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
            if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
            const Activation activation = ActivationOf(spec.attributes);
            const BackwardLayout layout(spec.inputs[4], RowsOf(spec.inputs[0].dims),
                                        spec.inputs[1].dims[0], activation);
            return MakeKernel(
                [&contexts, activation](const KernelArgs& args) {
                  return Backward(contexts, args, activation);
                },
                layout.bytes);
          },
          -1, Results::kOwnType));
}

}  // namespace espalier
