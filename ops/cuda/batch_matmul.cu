// Batched products by cuBLAS. Operands that an input `length` may truncate are copied first, with
// zeros beyond it; the length stays on the device.
#include <algorithm>

#include "ops/cuda/gemm/cublas_gemm.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_batch_matmul {

// target = source with zeros at index `length` and beyond along one dimension; they may be the
// same.
template <typename T>
struct CutElement {
  const T* source;
  T* target;
  const int32_t* length;
  int64_t first;  // of the shard, along that dimension
  int64_t size, inner;
  __device__ void operator()(int64_t i) const {
    const bool kept = first + i / inner % size < *length;
    target[i] = kept ? source[i] : FromFloat<T>(0.0f);
  }
};

struct Problem {
  int64_t batch, m, n, k;
  int64_t dim[2];     // of a and b, or -1
  size_t copy_at[2];  // where their copies lie
  size_t bytes;
};

Problem Describe(const KernelSpec& spec) {
  const Dims &a = spec.inputs[0].dims, &b = spec.inputs[1].dims;
  Problem p{a[0], a[1], b[2], a[2], {-1, -1}, {0, 0}, 0};
  if (!Has(spec.inputs, 2)) return p;
  WorkspaceLayout layout;
  const char* names[] = {"a_seq_length_dim", "b_seq_length_dim"};
  for (int i = 0; i < 2; ++i) {
    p.dim[i] = spec.attributes.Int(names[i], -1);
    if (p.dim[i] >= 0) p.copy_at[i] = layout.Add(static_cast<size_t>(spec.inputs[i].bytes()));
  }
  p.bytes = layout.bytes();
  return p;
}

KernelStatus Cut(const KernelArgs& args, const TensorSpec& operand, int64_t dim, const void* source,
                 void* target) {
  int64_t inner = 1;
  for (size_t d = dim + 1; d < operand.dims.size(); ++d) inner *= operand.dims[d];
  return DispatchFloat(operand.dtype, "batch_matmul", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        operand.num_elements(),
        CutElement<T>{static_cast<const T*>(source), static_cast<T*>(target),
                      args.inputs[2].as<int32_t>(),
                      operand.offset.empty() ? 0 : operand.offset[dim], operand.dims[dim], inner},
        StreamOf(args), "batch_matmul");
  });
}

// Returns operand 0 or 1 after truncation.
KernelStatus OperandOf(const KernelArgs& args, const Problem& p, int index, const void** data) {
  *data = args.inputs[index].data;
  if (p.dim[index] < 0) return KernelStatus::Ok();
  void* copy = WorkspaceAt(args, p.copy_at[index]);
  *data = copy;
  return Cut(args, args.inputs[index].spec, p.dim[index], args.inputs[index].data, copy);
}

KernelStatus Forward(DeviceContexts& contexts, const KernelArgs& args, const Problem& p) {
  const void *a = nullptr, *b = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(OperandOf(args, p, 0, &a));
  ESPALIER_KERNEL_RETURN_IF_ERROR(OperandOf(args, p, 1, &b));
  Gemm gemm;
  gemm.m = p.m;
  gemm.n = p.n;
  gemm.k = p.k;
  gemm.batch = p.batch;
  gemm.a = {a, false, p.k, p.m * p.k};
  gemm.b = {b, false, p.n, p.k * p.n};
  gemm.c = args.outputs[0].data;
  gemm.ldc = p.n;
  gemm.c_stride = p.m * p.n;
  gemm.input = gemm.output = args.inputs[0].dtype();
  return RunGemm(contexts, gemm, args.stream, "batch_matmul");
}

// a, b, length?, dy -> da = dy b^T, db = a^T dy
KernelStatus Backward(DeviceContexts& contexts, const KernelArgs& args, const Problem& p) {
  const TensorView& dy = args.inputs[3];
  Gemm gemm;
  gemm.batch = p.batch;
  gemm.input = gemm.output = dy.dtype();
  for (int i = 0; i < 2; ++i) {
    if (!Has(args.outputs, i)) continue;
    const TensorView& result = args.outputs[i];
    const void* other = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(OperandOf(args, p, 1 - i, &other));
    if (i == 0) {
      gemm.m = p.m;
      gemm.n = p.k;
      gemm.k = p.n;
      gemm.a = {dy.data, false, p.n, p.m * p.n};
      gemm.b = {other, true, p.n, p.k * p.n};
    } else {
      gemm.m = p.k;
      gemm.n = p.n;
      gemm.k = p.m;
      gemm.a = {other, true, p.k, p.m * p.k};
      gemm.b = {dy.data, false, p.n, p.m * p.n};
    }
    gemm.c = result.data;
    gemm.ldc = gemm.n;
    gemm.c_stride = gemm.m * gemm.n;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts, gemm, args.stream, "batch_matmul_grad"));
    if (p.dim[i] >= 0) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          Cut(args, args.inputs[i].spec, p.dim[i], result.data, result.data));
    }
  }
  return KernelStatus::Ok();
}

KernelFactory Factory(DeviceContexts& contexts,
                      KernelStatus (*run)(DeviceContexts&, const KernelArgs&, const Problem&)) {
  return [&contexts, run](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    if (spec.batch_invariant) {
      *refusal = "cuBLAS does not keep one order of summation for all numbers of rows";
      return nullptr;
    }
    const Problem p = Describe(spec);
    return MakeKernel(
        [&contexts, run, p](const KernelArgs& args) { return run(contexts, args, p); }, p.bytes);
  };
}

}  // namespace cuda_batch_matmul

void RegisterBatchMatmulCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_batch_matmul;
  registry.Add("batch_matmul", Factory(contexts, Forward));
  registry.Add("batch_matmul_grad", Factory(contexts, Backward));
}

}  // namespace espalier
