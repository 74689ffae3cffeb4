// Training: cuBLAS for y, dx and dweight. Serving: StableLinear.
#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"
#include "ops/cuda/stable_linear.h"

namespace espalier {
namespace {

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

// The bias is laid into y first, exactly, and the product added to it: one rounding.
KernelStatus Forward(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &y = args.outputs[0];
  const bool bias = Has(args.inputs, 2);
  Gemm gemm;
  gemm.m = RowsOf(x.dims());
  gemm.n = weight.dims()[0];
  gemm.k = weight.dims()[1];
  if (bias) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(y.dtype(), "linear", [&](auto type) {
      using T = typename decltype(type)::T;
      return ForEach(y.num_elements(), RepeatRow<T>{args.inputs[2].as<T>(), y.as<T>(), gemm.n},
                     StreamOf(args), "linear");
    }));
  }
  gemm.a = {x.data, false, gemm.k, 0};
  gemm.b = {weight.data, true, gemm.k, 0};
  gemm.c = y.data;
  gemm.ldc = gemm.n;
  gemm.input = gemm.output = x.dtype();
  gemm.beta = bias ? 1.0f : 0.0f;
  return RunGemm(contexts, gemm, args.stream, "linear");
}

// [rows, columns] summed over the rows.
ReduceShape ColumnSums(int64_t rows, int64_t columns) {
  return ReduceShape::Make({rows, columns}, {true, false});
}

// x, weight, dy -> dx = dy weight, dweight = dy^T x, dbias = column sums of dy
KernelStatus Backward(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &dy = args.inputs[2];
  const int64_t rows = RowsOf(x.dims()), out = weight.dims()[0], in = weight.dims()[1];
  Gemm gemm;
  gemm.input = gemm.output = dy.dtype();
  if (Has(args.outputs, 0)) {
    gemm.m = rows;
    gemm.n = in;
    gemm.k = out;
    gemm.a = {dy.data, false, out, 0};
    gemm.b = {weight.data, false, in, 0};
    gemm.c = args.outputs[0].data;
    gemm.ldc = in;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts, gemm, args.stream, "linear_grad"));
  }
  if (Has(args.outputs, 1)) {
    gemm.m = out;
    gemm.n = in;
    gemm.k = rows;
    gemm.a = {dy.data, true, out, 0};
    gemm.b = {x.data, false, in, 0};
    gemm.c = args.outputs[1].data;
    gemm.ldc = in;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts, gemm, args.stream, "linear_grad"));
  }
  if (!Has(args.outputs, 2)) return KernelStatus::Ok();
  return DispatchFloat(dy.dtype(), "linear_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return Reduce(ColumnSums(rows, out), ValueAt<T>{dy.as<T>()},
                  StoreScaled<T>{args.outputs[2].as<T>(), 1.0f}, args.workspace, StreamOf(args),
                  "linear_grad");
  });
}

}  // namespace

void RegisterLinearCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add(
      "linear", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        if (!spec.row_stable) {
          *refusal = "the row-stable kernel is slower than cuBLAS where stability is not asked for";
          return nullptr;
        }
        return MakeKernel([](const KernelArgs& args) {
          const TensorView &x = args.inputs[0], &weight = args.inputs[1];
          return StableLinear(
              {x.dtype(), RowsOf(x.dims()), weight.dims()[1], weight.dims()[0], x.data, weight.data,
               Has(args.inputs, 2) ? args.inputs[2].data : nullptr, args.outputs[0].data},
              StreamOf(args));
        });
      });
  registry.Add(
      "linear",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        if (spec.row_stable) {
          *refusal = "cuBLAS does not keep one order of summation for all numbers of rows";
          return nullptr;
        }
        return MakeKernel([&contexts](const KernelArgs& args) { return Forward(contexts, args); });
      });
  registry.Add(
      "linear_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        return MakeKernel(
            [&contexts](const KernelArgs& args) { return Backward(contexts, args); },
            ColumnSums(RowsOf(spec.inputs[0].dims), spec.inputs[1].dims[0]).WorkspaceBytes());
      });
}

}  // namespace espalier
