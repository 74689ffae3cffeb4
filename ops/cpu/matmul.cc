// Batched matrix products by oneDNN. Batch dimensions that broadcast become a loop over single
// products with offsets, which also adds up the gradients of a broadcast operand in a fixed order.
#include <algorithm>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/onednn/onednn.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

struct Problem {
  int64_t m, n, k, batch;
  bool ta, tb;
  Dims a_batch, b_batch, y_batch;  // of equal length
  bool broadcasts;
};

Dims Padded(const Dims& dims, size_t rank) {
  Dims batch(dims.begin(), dims.end() - 2);
  batch.insert(batch.begin(), rank - dims.size(), 1);
  return batch;
}

Problem Describe(const Attributes& attributes, const Dims& a, const Dims& b) {
  Problem p;
  p.ta = attributes.Bool("transpose_a");
  p.tb = attributes.Bool("transpose_b");
  p.m = a[a.size() - (p.ta ? 1 : 2)];
  p.k = a[a.size() - (p.ta ? 2 : 1)];
  p.n = b[b.size() - (p.tb ? 2 : 1)];
  const size_t rank = std::max(a.size(), b.size());
  p.a_batch = Padded(a, rank);
  p.b_batch = Padded(b, rank);
  p.y_batch.resize(rank - 2);
  for (size_t d = 0; d + 2 < rank; ++d) {
    p.y_batch[d] = p.a_batch[d] == 1 ? p.b_batch[d] : p.a_batch[d];
  }
  p.batch = NumElements(p.y_batch);
  p.broadcasts = p.a_batch != p.b_batch;
  return p;
}

// Number of the operand's matrix that belongs to matrix `index` of the output.
int64_t MatrixOf(const Dims& operand, const Dims& output, int64_t index) {
  int64_t matrix = 0, stride = 1;
  for (size_t d = output.size(); d-- > 0;) {
    const int64_t i = index % output[d];
    index /= output[d];
    if (operand[d] != 1) matrix += i * stride;
    stride *= operand[d];
  }
  return matrix;
}

MatrixLayout Layout(int64_t rows, int64_t columns, bool transposed) {
  if (transposed) return {rows * columns, 1, rows};
  return {rows * columns, columns, 1};
}

GemmSpec Product(const Problem& p, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  GemmSpec spec;
  spec.batch = p.broadcasts ? 1 : p.batch;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  spec.a = Layout(m, k, ta);
  spec.b = Layout(k, n, tb);
  spec.c = Layout(m, n, false);
  return spec;
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string* refusal) {
  if (spec.batch_invariant) {
    *refusal = "oneDNN's order of summation depends on the number of rows";
    return nullptr;
  }
  const Problem p = Describe(spec.attributes, spec.inputs[0].dims, spec.inputs[1].dims);
  std::shared_ptr<Gemm> gemm = Gemm::Make(Product(p, p.m, p.n, p.k, p.ta, p.tb), refusal);
  if (gemm == nullptr) return nullptr;
  return MakeKernel(
      [=](const KernelArgs& args) {
        const float* a = args.inputs[0].as<float>();
        const float* b = args.inputs[1].as<float>();
        float* y = args.outputs[0].as<float>();
        if (!p.broadcasts) return KernelStatus{gemm->Run(a, b, nullptr, y, args.workspace)};
        std::string error;
        for (int64_t i = 0; i < p.batch && error.empty(); ++i) {
          error = gemm->Run(a + MatrixOf(p.a_batch, p.y_batch, i) * p.m * p.k,
                            b + MatrixOf(p.b_batch, p.y_batch, i) * p.k * p.n, nullptr,
                            y + i * p.m * p.n, args.workspace);
        }
        return KernelStatus{error};
      },
      gemm->workspace_bytes());
}

// Serving, batch-invariant: element (i, j) adds a[i, p] b[p, j] for p = 0, 1, ... in order.
std::unique_ptr<Kernel> MakeStable(const KernelSpec& spec, std::string* refusal) {
  if (!spec.batch_invariant) {
    *refusal =
        "the batch-invariant kernel is slower than oneDNN where batch invariance is not required";
    return nullptr;
  }
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    const Problem p = Describe(attributes, args.inputs[0].dims(), args.inputs[1].dims());
    const MatrixLayout a_layout = Layout(p.m, p.k, p.ta), b_layout = Layout(p.k, p.n, p.tb);
    ParallelRanges(p.batch * p.m, p.n * p.k, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t matrix = row / p.m;
        const float* a = args.inputs[0].as<float>() +
                         MatrixOf(p.a_batch, p.y_batch, matrix) * p.m * p.k +
                         row % p.m * a_layout.row_stride;
        const float* b =
            args.inputs[1].as<float>() + MatrixOf(p.b_batch, p.y_batch, matrix) * p.k * p.n;
        float* y = args.outputs[0].as<float>() + row * p.n;
        std::fill(y, y + p.n, 0.0f);
        for (int64_t k = 0; k < p.k; ++k) {
          const float left = a[k * a_layout.column_stride];
          const float* right = b + k * b_layout.row_stride;
          for (int64_t j = 0; j < p.n; ++j) y[j] += left * right[j * b_layout.column_stride];
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// The gradient of one operand: a product of dy and the other operand, one or the other transposed
// such that the result comes out as the operand is stored.
struct OperandGradient {
  std::shared_ptr<Gemm> gemm;
  bool dy_first;
  Dims batch;                // of the operand
  Dims other_batch;          // of the other operand
  int64_t size, other_size;  // elements of one matrix
};

bool MakeGradients(const Problem& p, OperandGradient* da, OperandGradient* db,
                   std::string* refusal) {
  GemmSpec a =
      p.ta ? Product(p, p.k, p.m, p.n, p.tb, true) : Product(p, p.m, p.k, p.n, false, !p.tb);
  GemmSpec b =
      p.tb ? Product(p, p.n, p.k, p.m, true, p.ta) : Product(p, p.k, p.n, p.m, !p.ta, false);
  a.accumulate = b.accumulate = p.broadcasts;
  *da = {Gemm::Make(a, refusal), !p.ta, p.a_batch, p.b_batch, p.m * p.k, p.k * p.n};
  if (da->gemm == nullptr) return false;
  *db = {Gemm::Make(b, refusal), p.tb, p.b_batch, p.a_batch, p.k * p.n, p.m * p.k};
  return db->gemm != nullptr;
}

std::string RunGradient(const Problem& p, const OperandGradient& gradient, const float* dy,
                        const float* other, float* out, void* workspace) {
  const auto run = [&](const float* dy_matrix, const float* other_matrix, float* out_matrix) {
    return gradient.gemm->Run(gradient.dy_first ? dy_matrix : other_matrix,
                              gradient.dy_first ? other_matrix : dy_matrix, nullptr, out_matrix,
                              workspace);
  };
  if (!p.broadcasts) return run(dy, other, out);
  const int64_t elements = NumElements(gradient.batch) * gradient.size;
  std::fill(out, out + elements, 0.0f);
  std::string error;
  for (int64_t i = 0; i < p.batch && error.empty(); ++i) {
    error = run(dy + i * p.m * p.n,
                other + MatrixOf(gradient.other_batch, p.y_batch, i) * gradient.other_size,
                out + MatrixOf(gradient.batch, p.y_batch, i) * gradient.size);
  }
  return error;
}

// a, b, dy -> da, db
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string* refusal) {
  const Problem p = Describe(spec.attributes, spec.inputs[0].dims, spec.inputs[1].dims);
  OperandGradient da, db;
  if (!MakeGradients(p, &da, &db, refusal)) return nullptr;
  return MakeKernel(
      [=](const KernelArgs& args) {
        const float* dy = args.inputs[2].as<float>();
        std::string error;
        if (args.outputs[0].present()) {
          error = RunGradient(p, da, dy, args.inputs[1].as<float>(), args.outputs[0].as<float>(),
                              args.workspace);
        }
        if (error.empty() && args.outputs[1].present()) {
          error = RunGradient(p, db, dy, args.inputs[0].as<float>(), args.outputs[1].as<float>(),
                              args.workspace);
        }
        return KernelStatus{error};
      },
      std::max(da.gemm->workspace_bytes(), db.gemm->workspace_bytes()));
}

}  // namespace

void RegisterMatmulCpu(KernelRegistry& registry) {
  registry.Add("matmul", ViaF32(MakeStable));
  registry.Add("matmul", ViaF32(MakeForward));
  registry.Add("matmul_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
