// Batched matrix products by oneDNN. Operands that an input `length` truncates are copied first,
// with zeros beyond it.
#include <algorithm>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/onednn/onednn.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

// Truncation of an operand: elements with index `limit` or more along `dim` count as 0.
struct Cut {
  int64_t dim = -1;
  int64_t limit = 0;  // within the shard

  bool Applies(const Dims& dims) const { return dim >= 0 && limit < dims[dim]; }
};

Cut CutOf(const KernelArgs& args, const TensorSpec& operand, int64_t dim) {
  if (dim < 0 || args.inputs.size() < 3 || !args.inputs[2].present()) return {};
  const int64_t first = operand.offset.empty() ? 0 : operand.offset[dim];
  return {dim, std::max<int64_t>(0, *args.inputs[2].as<int32_t>() - first)};
}

// target = source, truncated; target may alias source.
void CopyCut(const Cut& cut, const Dims& dims, const float* source, float* target) {
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < cut.dim; ++d) outer *= dims[d];
  for (int64_t d = cut.dim + 1; d < 3; ++d) inner *= dims[d];
  const int64_t whole = dims[cut.dim] * inner, kept = std::min(whole, cut.limit * inner);
  ParallelRanges(outer, whole, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      if (source != target) std::copy_n(source + o * whole, kept, target + o * whole);
      std::fill(target + o * whole + kept, target + (o + 1) * whole, 0.0f);
    }
  });
}

MatrixLayout Layout(int64_t rows, int64_t columns, bool transposed) {
  return {rows * columns, transposed ? 1 : columns, transposed ? rows : 1};
}

std::shared_ptr<Gemm> MakeProduct(int64_t batch, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                                  std::string* refusal) {
  GemmSpec spec;
  spec.batch = batch;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  spec.a = Layout(m, k, ta);
  spec.b = Layout(k, n, tb);
  spec.c = Layout(m, n, false);
  return Gemm::Make(spec, refusal);
}

// Shared by both kernels. Inputs: a, b, length? and, for the gradient, dy.
class Product : public Kernel {
 public:
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  void Describe(const KernelSpec& spec) {
    a_dim_ = spec.attributes.Int("a_seq_length_dim", -1);
    b_dim_ = spec.attributes.Int("b_seq_length_dim", -1);
    const Dims &a = spec.inputs[0].dims, &b = spec.inputs[1].dims;
    batch_ = a[0];
    m_ = a[1];
    k_ = a[2];
    n_ = b[2];
    if (a_dim_ >= 0) a_at_ = layout_.Add(NumElements(a) * sizeof(float));
    if (b_dim_ >= 0) b_at_ = layout_.Add(NumElements(b) * sizeof(float));
  }
  // Returns operand 0 or 1 after truncation.
  const float* Operand(const KernelArgs& args, int index) const {
    const TensorView& view = args.inputs[index];
    const Cut cut = CutOf(args, view.spec, index == 0 ? a_dim_ : b_dim_);
    if (!cut.Applies(view.dims())) return view.as<float>();
    float* copy = WorkspaceAt(args.workspace, index == 0 ? a_at_ : b_at_);
    CopyCut(cut, view.dims(), view.as<float>(), copy);
    return copy;
  }

  int64_t batch_ = 0, m_ = 0, n_ = 0, k_ = 0;
  int64_t a_dim_ = -1, b_dim_ = -1;
  WorkspaceLayout layout_;
  size_t a_at_ = 0, b_at_ = 0, scratch_at_ = 0;
};

class Forward : public Product {
 public:
  static std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
    if (spec.batch_invariant) {
      *refusal = "oneDNN's order of summation depends on the number of rows";
      return nullptr;
    }
    auto kernel = std::make_unique<Forward>();
    kernel->Describe(spec);
    kernel->gemm_ =
        MakeProduct(kernel->batch_, kernel->m_, kernel->n_, kernel->k_, false, false, refusal);
    if (kernel->gemm_ == nullptr) return nullptr;
    kernel->scratch_at_ = kernel->layout_.Add(kernel->gemm_->workspace_bytes());
    return kernel;
  }

  KernelStatus Run(const KernelArgs& args) override {
    const float *a = Operand(args, 0), *b = Operand(args, 1);
    return KernelStatus{gemm_->Run(a, b, nullptr, args.outputs[0].as<float>(),
                                   WorkspaceAt(args.workspace, scratch_at_))};
  }

 private:
  std::shared_ptr<Gemm> gemm_;
};

// a, b, length?, dy -> da = dy b^T, db = a^T dy
class Backward : public Product {
 public:
  static std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
    auto kernel = std::make_unique<Backward>();
    kernel->Describe(spec);
    kernel->da_ =
        MakeProduct(kernel->batch_, kernel->m_, kernel->k_, kernel->n_, false, true, refusal);
    if (kernel->da_ == nullptr) return nullptr;
    kernel->db_ =
        MakeProduct(kernel->batch_, kernel->k_, kernel->n_, kernel->m_, true, false, refusal);
    if (kernel->db_ == nullptr) return nullptr;
    kernel->scratch_at_ = kernel->layout_.Add(
        std::max(kernel->da_->workspace_bytes(), kernel->db_->workspace_bytes()));
    return kernel;
  }

  KernelStatus Run(const KernelArgs& args) override {
    const float* dy = args.inputs[3].as<float>();
    float* scratch = WorkspaceAt(args.workspace, scratch_at_);
    std::string error;
    if (args.outputs[0].present()) {
      error = da_->Run(dy, Operand(args, 1), nullptr, args.outputs[0].as<float>(), scratch);
      CutResult(args, 0, a_dim_);
    }
    if (error.empty() && args.outputs[1].present()) {
      error = db_->Run(Operand(args, 0), dy, nullptr, args.outputs[1].as<float>(), scratch);
      CutResult(args, 1, b_dim_);
    }
    return KernelStatus{error};
  }

 private:
  void CutResult(const KernelArgs& args, int index, int64_t dim) const {
    const TensorView& view = args.outputs[index];
    const Cut cut = CutOf(args, args.inputs[index].spec, dim);
    if (cut.Applies(view.dims())) CopyCut(cut, view.dims(), view.as<float>(), view.as<float>());
  }

  std::shared_ptr<Gemm> da_, db_;
};

}  // namespace

void RegisterBatchMatmulCpu(KernelRegistry& registry) {
  registry.Add("batch_matmul", ViaF32(Forward::Make));
  registry.Add("batch_matmul_grad", ViaF32(Backward::Make));
}

}  // namespace espalier
