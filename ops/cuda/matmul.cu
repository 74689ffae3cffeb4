// Batched products by cuBLAS. Batch dimensions that are broadcast unevenly run one product at a
// time.
#include <utility>
#include <vector>

#include "ops/cuda/gemm/cublas_gemm.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"

namespace espalier {
namespace cuda_matmul {

Dims BatchOf(const Dims& dims) { return Dims(dims.begin(), dims.end() - 2); }

int64_t MatrixSize(const Dims& dims) { return dims[dims.size() - 2] * dims[dims.size() - 1]; }

// Maps each element of the batch dimensions `result` to the matrix of an operand that it uses.
std::vector<int64_t> BatchIndices(const Dims& operand, const Dims& result) {
  std::vector<int64_t> indices(NumElements(result));
  const Dims strides = DenseStrides(operand);
  const size_t missing = result.size() - operand.size();
  for (size_t i = 0; i < indices.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), at = 0;
    for (size_t d = result.size(); d-- > missing;) {
      const int64_t place = rest % result[d];
      rest /= result[d];
      if (operand[d - missing] != 1) at += place * strides[d - missing];
    }
    indices[i] = at;
  }
  return indices;
}

struct Problem {
  int64_t m, n, k;
  bool ta, tb;
  Dims a_batch, b_batch, y_batch;
  int64_t a_size, b_size, y_size;  // elements of one matrix

  Problem(const Dims& a, const Dims& b, const Dims& y, bool ta, bool tb)
      : ta(ta), tb(tb), a_batch(BatchOf(a)), b_batch(BatchOf(b)), y_batch(BatchOf(y)) {
    m = y[y.size() - 2];
    n = y[y.size() - 1];
    k = ta ? a[a.size() - 2] : a[a.size() - 1];
    a_size = MatrixSize(a);
    b_size = MatrixSize(b);
    y_size = m * n;
  }
  int64_t batch() const { return NumElements(y_batch); }
  int64_t lda() const { return ta ? m : k; }
  int64_t ldb() const { return tb ? k : n; }
};

// Whether each operand has the whole batch or a single matrix.
bool Even(const Dims& operand, const Dims& result) {
  const int64_t n = NumElements(operand);
  return n == 1 || n == NumElements(result);
}

void* At(void* data, int64_t elements, DType dtype) {
  return static_cast<char*>(data) + elements * static_cast<int64_t>(SizeOf(dtype));
}

KernelStatus Forward(DeviceContexts& contexts, const KernelArgs& args, bool ta, bool tb) {
  const TensorView &a = args.inputs[0], &b = args.inputs[1], &y = args.outputs[0];
  const Problem p(a.dims(), b.dims(), y.dims(), ta, tb);
  const DType dtype = y.dtype();
  Gemm gemm;
  gemm.m = p.m;
  gemm.n = p.n;
  gemm.k = p.k;
  gemm.a = {a.data, ta, p.lda(), 0};
  gemm.b = {b.data, tb, p.ldb(), 0};
  gemm.c = y.data;
  gemm.ldc = p.n;
  gemm.c_stride = p.y_size;
  gemm.input = gemm.output = dtype;
  if (Even(p.a_batch, p.y_batch) && Even(p.b_batch, p.y_batch)) {
    gemm.batch = p.batch();
    if (NumElements(p.b_batch) == 1 && NumElements(p.a_batch) == p.batch() && !ta) {
      gemm.m *= gemm.batch;  // a single product with more rows
      gemm.batch = 1;
    }
    gemm.a.batch_stride = NumElements(p.a_batch) == 1 ? 0 : p.a_size;
    gemm.b.batch_stride = NumElements(p.b_batch) == 1 ? 0 : p.b_size;
    return RunGemm(contexts, gemm, args.stream, "matmul");
  }
  const std::vector<int64_t> a_at = BatchIndices(p.a_batch, p.y_batch);
  const std::vector<int64_t> b_at = BatchIndices(p.b_batch, p.y_batch);
  for (int64_t i = 0; i < p.batch(); ++i) {
    gemm.a.data = At(a.data, a_at[i] * p.a_size, dtype);
    gemm.b.data = At(b.data, b_at[i] * p.b_size, dtype);
    gemm.c = At(y.data, i * p.y_size, dtype);
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts, gemm, args.stream, "matmul"));
  }
  return KernelStatus::Ok();
}

// The gradient of one operand: a product whose left and right factors are operands of the forward
// product or dy, summed over the batch elements that share the operand's matrix.
struct GradientProduct {
  Gemm gemm;  // m, n, k, ldc and the factors' layouts
  const TensorView* left;
  const TensorView* right;
  std::vector<int64_t> left_at, right_at, target_at;
  int64_t left_size, right_size, target_size;
  // Each factor has the whole batch, or one matrix; the target has the whole batch.
  bool even = false;
};

template <typename T>
struct RoundElement {
  const float* x;
  T* y;
  __device__ void operator()(int64_t i) const { y[i] = FromFloat<T>(x[i]); }
};

KernelStatus RunGradient(DeviceContexts& contexts, const KernelArgs& args,
                         const GradientProduct& product, const TensorView& target) {
  const DType dtype = target.dtype();
  Gemm gemm = product.gemm;
  gemm.input = gemm.output = dtype;
  if (product.even) {
    gemm.a.data = product.left->data;
    gemm.b.data = product.right->data;
    gemm.c = target.data;
    return RunGemm(contexts, gemm, args.stream, "matmul_grad");
  }
  // Sums over the batch stay in f32 until the end.
  const bool round = dtype != DType::kF32;
  void* sums = round ? args.workspace : target.data;
  gemm.output = DType::kF32;
  std::vector<bool> begun(target.num_elements() / std::max<int64_t>(1, product.target_size), false);
  for (size_t i = 0; i < product.target_at.size(); ++i) {
    const int64_t t = product.target_at[i];
    gemm.a.data = At(product.left->data, product.left_at[i] * product.left_size, dtype);
    gemm.b.data = At(product.right->data, product.right_at[i] * product.right_size, dtype);
    gemm.c = At(sums, t * product.target_size, DType::kF32);
    gemm.beta = begun[t] ? 1.0f : 0.0f;
    begun[t] = true;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts, gemm, args.stream, "matmul_grad"));
  }
  if (!round) return KernelStatus::Ok();
  return DispatchFloat(dtype, "matmul_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(target.num_elements(),
                   RoundElement<T>{static_cast<const float*>(sums), target.as<T>()}, StreamOf(args),
                   "matmul_grad");
  });
}

// a, b, dy -> da, db
KernelStatus Backward(DeviceContexts& contexts, const KernelArgs& args, bool ta, bool tb) {
  const TensorView &a = args.inputs[0], &b = args.inputs[1], &dy = args.inputs[2];
  const Problem p(a.dims(), b.dims(), dy.dims(), ta, tb);
  const int64_t batch = p.batch();
  if (batch == 0 || p.y_size == 0) {
    for (const TensorView& target : args.outputs) {
      if (!target.present()) continue;
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          FillOnStream(target.data, target.dtype(), target.num_elements(), 0, StreamOf(args)));
    }
    return KernelStatus::Ok();
  }
  std::vector<int64_t> y_at(batch);
  for (int64_t i = 0; i < batch; ++i) y_at[i] = i;
  const std::vector<int64_t> a_at = BatchIndices(p.a_batch, p.y_batch);
  const std::vector<int64_t> b_at = BatchIndices(p.b_batch, p.y_batch);
  const bool a_whole = NumElements(p.a_batch) == batch, b_whole = NumElements(p.b_batch) == batch;
  const int64_t a_stride = a_whole ? p.a_size : 0, b_stride = b_whole ? p.b_size : 0;

  if (Has(args.outputs, 0)) {
    GradientProduct da;
    if (!ta) {  // dy op(b)^T
      da.gemm.m = p.m;
      da.gemm.n = p.k;
      da.gemm.k = p.n;
      da.gemm.a = {nullptr, false, p.n, p.y_size};
      da.gemm.b = {nullptr, !tb, p.ldb(), b_stride};
      da.left = &dy;
      da.right = &b;
      da.left_at = y_at;
      da.right_at = b_at;
      da.left_size = p.y_size;
      da.right_size = p.b_size;
    } else {  // op(b) dy^T
      da.gemm.m = p.k;
      da.gemm.n = p.m;
      da.gemm.k = p.n;
      da.gemm.a = {nullptr, tb, p.ldb(), b_stride};
      da.gemm.b = {nullptr, true, p.n, p.y_size};
      da.left = &b;
      da.right = &dy;
      da.left_at = b_at;
      da.right_at = y_at;
      da.left_size = p.b_size;
      da.right_size = p.y_size;
    }
    da.gemm.ldc = p.lda();
    da.gemm.c_stride = p.a_size;
    da.gemm.batch = batch;
    da.target_at = a_at;
    da.target_size = p.a_size;
    da.even = a_whole && Even(p.b_batch, p.y_batch);
    if (!da.even) da.gemm.batch = 1;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGradient(contexts, args, da, args.outputs[0]));
  }
  if (Has(args.outputs, 1)) {
    GradientProduct db;
    if (!tb) {  // op(a)^T dy
      db.gemm.m = p.k;
      db.gemm.n = p.n;
      db.gemm.k = p.m;
      db.gemm.a = {nullptr, !ta, p.lda(), a_stride};
      db.gemm.b = {nullptr, false, p.n, p.y_size};
      db.left = &a;
      db.right = &dy;
      db.left_at = a_at;
      db.right_at = y_at;
      db.left_size = p.a_size;
      db.right_size = p.y_size;
    } else {  // dy^T op(a)
      db.gemm.m = p.n;
      db.gemm.n = p.k;
      db.gemm.k = p.m;
      db.gemm.a = {nullptr, true, p.n, p.y_size};
      db.gemm.b = {nullptr, ta, p.lda(), a_stride};
      db.left = &dy;
      db.right = &a;
      db.left_at = y_at;
      db.right_at = a_at;
      db.left_size = p.y_size;
      db.right_size = p.a_size;
    }
    db.gemm.ldc = p.ldb();
    db.gemm.c_stride = p.b_size;
    db.gemm.batch = batch;
    db.target_at = b_at;
    db.target_size = p.b_size;
    db.even = b_whole && Even(p.a_batch, p.y_batch);
    // A single right factor for the whole batch: sums over the rows of all its matrices in one
    // product.
    if (!db.even && NumElements(p.b_batch) == 1 && a_whole && !ta) {
      db.gemm.k = p.m * batch;
      db.even = true;
      db.gemm.batch = 1;
    }
    if (!db.even) db.gemm.batch = 1;
    ESPALIER_KERNEL_RETURN_IF_ERROR(RunGradient(contexts, args, db, args.outputs[1]));
  }
  return KernelStatus::Ok();
}

// Batch-invariant, for serving: one thread per element, k in order.
template <typename T>
struct StableElement {
  const T* a;
  const T* b;
  T* y;
  int64_t m, n, k, a_row, a_column, b_row, b_column, a_batch, b_batch;
  __device__ void operator()(int64_t i) const {
    const int64_t column = i % n, row = i / n % m, batch = i / (n * m);
    const T* left = a + batch * a_batch + row * a_row;
    const T* right = b + batch * b_batch + column * b_column;
    float sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum = fmaf(ToFloat(left[j * a_column]), ToFloat(right[j * b_row]), sum);
    }
    y[i] = FromFloat<T>(sum);
  }
};

KernelStatus StableForward(const KernelArgs& args, bool ta, bool tb) {
  const TensorView &a = args.inputs[0], &b = args.inputs[1], &y = args.outputs[0];
  const Problem p(a.dims(), b.dims(), y.dims(), ta, tb);
  if (!Even(p.a_batch, p.y_batch) || !Even(p.b_batch, p.y_batch)) {
    return KernelStatus::Error(
        "matmul: batch dimensions that are broadcast in part are not supported in serving on CUDA");
  }
  return DispatchFloat(y.dtype(), "matmul", [&](auto type) {
    using T = typename decltype(type)::T;
    const StableElement<T> each{a.as<T>(),
                                b.as<T>(),
                                y.as<T>(),
                                p.m,
                                p.n,
                                p.k,
                                ta ? 1 : p.lda(),
                                ta ? p.lda() : 1,
                                tb ? 1 : p.ldb(),
                                tb ? p.ldb() : 1,
                                NumElements(p.a_batch) == 1 ? 0 : p.a_size,
                                NumElements(p.b_batch) == 1 ? 0 : p.b_size};
    return ForEach(y.num_elements(), each, StreamOf(args), "matmul");
  });
}

}  // namespace cuda_matmul

void RegisterMatmulCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_matmul;
  registry.Add(
      "matmul",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const bool ta = spec.attributes.Bool("transpose_a");
        const bool tb = spec.attributes.Bool("transpose_b");
        if (spec.batch_invariant) {
          return MakeKernel(
              [ta, tb](const KernelArgs& args) { return StableForward(args, ta, tb); });
        }
        return MakeKernel([&contexts, ta, tb](const KernelArgs& args) {
          return Forward(contexts, args, ta, tb);
        });
      });
  registry.Add(
      "matmul_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const bool ta = spec.attributes.Bool("transpose_a");
        const bool tb = spec.attributes.Bool("transpose_b");
        int64_t bytes = 0;
        for (const TensorSpec& target : spec.outputs) {
          if (target.dtype == DType::kInvalid || target.dtype == DType::kF32) continue;
          bytes = std::max<int64_t>(bytes, target.num_elements() * sizeof(float));
        }
        return MakeKernel([&contexts, ta,
                           tb](const KernelArgs& args) { return Backward(contexts, args, ta, tb); },
                          static_cast<size_t>(bytes));
      });
}

}  // namespace espalier
