// linear. Training: oneDNN's matmul for y, dx and dw. Serving: BatchInvariantLinear.
#include <algorithm>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/linear_args.h"
#include "ops/cpu/layout/rows.h"
#include "ops/cpu/onednn/onednn.h"
#include "ops/cpu/simd/activation.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

// Row-major [rows, columns], or its transpose.
MatrixLayout RowMajor(int64_t columns) { return {0, columns, 1}; }
MatrixLayout Transposed(int64_t columns) { return {0, 1, columns}; }

std::unique_ptr<Kernel> MakeStable(const KernelSpec& spec, std::string* refusal) {
  if (!spec.batch_invariant) {
    *refusal =
        "the batch-invariant kernel is slower than oneDNN where batch invariance is not required";
    return nullptr;
  }
  const DType dtype = spec.inputs[0].dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    *refusal = std::string("no batch-invariant kernel of its own for ") + Name(dtype);
    return nullptr;
  }
  const Activation activation = ActivationOf(spec.attributes);
  if (activation != Activation::kNone && dtype != DType::kF32) {
    *refusal = "the activation needs the product in f32";
    return nullptr;
  }
  return MakeKernel([activation](const KernelArgs& args) {
    BatchInvariantLinear(ProductsOf(args));
    if (activation != Activation::kNone) {
      for (const TensorView& y : args.outputs) {
        Activate(activation, y.as<float>(), y.num_elements());
      }
    }
    return KernelStatus::Ok();
  });
}

bool HasBias(const KernelSpec& spec) {
  return spec.inputs.size() > 2 && spec.inputs[2].dtype != DType::kInvalid;
}

// y before the activation, if `activation` is none.
std::shared_ptr<Gemm> MakeProduct(const Dims& x, const Dims& weight, bool bias,
                                  Activation activation, std::string* refusal) {
  GemmSpec problem;
  problem.m = RowsOf(x);
  problem.n = weight[0];
  problem.k = weight[1];
  problem.a = RowMajor(problem.k);
  problem.b = Transposed(problem.k);
  problem.c = RowMajor(problem.n);
  problem.bias = bias;
  problem.activation = activation;
  return Gemm::Make(problem, refusal);
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string* refusal) {
  if (spec.batch_invariant) {  // f16 runs in f32
    return MakeStable(spec, refusal);
  }
  const bool bias = HasBias(spec);
  const std::shared_ptr<Gemm> gemm = MakeProduct(spec.inputs[0].dims, spec.inputs[1].dims, bias,
                                                 ActivationOf(spec.attributes), refusal);
  if (gemm == nullptr) return nullptr;
  return MakeKernel(
      [gemm, bias](const KernelArgs& args) {
        return KernelStatus{gemm->Run(args.inputs[0].as<float>(), args.inputs[1].as<float>(),
                                      bias ? args.inputs[2].as<float>() : nullptr,
                                      args.outputs[0].as<float>(), args.workspace)};
      },
      gemm->workspace_bytes());
}

// Number of blocks of rows with their own partial sums: a function of the shape alone.
constexpr int64_t kMaxBlocks = 32, kFewestRows = 16;

int64_t BlocksOf(int64_t rows) { return std::clamp<int64_t>(rows / kFewestRows, 1, kMaxBlocks); }

// sums[j] = sum over rows of x[i, j]; `parts` holds `columns` floats for each block.
void SumRows(const float* x, int64_t rows, int64_t columns, float* parts, float* sums) {
  const auto add = [](const float* x, int64_t rows, int64_t columns, float* to) {
    std::fill_n(to, columns, 0.0f);
    for (int64_t i = 0; i < rows; ++i, x += columns) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) to[j] += x[j];
    }
  };
  const int64_t blocks = BlocksOf(rows);
  if (blocks == 1) return Vectorize(add, x, rows, columns, sums);
  ParallelRanges(blocks, rows / blocks * columns, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
      Vectorize(add, x + first * columns, last - first, columns, parts + block * columns);
    }
  });
  Vectorize(add, const_cast<const float*>(parts), blocks, columns, sums);
}

// x, weight, bias, y, dy -> dx = dz weight, dweight = dz^T x, dbias = column sums of dz, where dz
// is dy before the activation.
class Backward : public Kernel {
 public:
  static std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
    auto kernel = std::make_unique<Backward>();
    if (!kernel->Prepare(spec, refusal)) return nullptr;
    return kernel;
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const float* x = args.inputs[0].as<float>();
    const float* weight = args.inputs[1].as<float>();
    const float* dz = args.inputs[4].as<float>();
    float* scratch = WorkspaceAt(args.workspace, scratch_);
    std::string error;
    if (activation_ != Activation::kNone) {
      float* own = WorkspaceAt(args.workspace, dz_);
      const float* saved = own;
      if (product_ == nullptr) {
        saved = args.inputs[3].as<float>();
      } else {
        error =
            product_->Run(x, weight, bias_ ? args.inputs[2].as<float>() : nullptr, own, scratch);
        if (!error.empty()) return KernelStatus{error};
      }
      ActivationGradient(activation_, saved, dz, own, rows_ * out_);
      dz = own;
    }
    if (args.outputs[0].present()) {
      error = dx_->Run(dz, weight, nullptr, args.outputs[0].as<float>(), scratch);
    }
    if (error.empty() && args.outputs[1].present()) {
      error = dweight_->Run(dz, x, nullptr, args.outputs[1].as<float>(), scratch);
    }
    if (args.outputs.size() > 2 && args.outputs[2].present()) {
      SumRows(dz, rows_, out_, scratch, args.outputs[2].as<float>());
    }
    return KernelStatus{error};
  }

 private:
  bool Prepare(const KernelSpec& spec, std::string* refusal) {
    rows_ = RowsOf(spec.inputs[0].dims);
    out_ = spec.inputs[1].dims[0];
    const int64_t in = spec.inputs[1].dims[1];
    activation_ = ActivationOf(spec.attributes);
    GemmSpec dx;
    dx.m = rows_;
    dx.n = in;
    dx.k = out_;
    dx.a = RowMajor(out_);
    dx.b = RowMajor(in);
    dx.c = RowMajor(in);
    GemmSpec dweight;
    dweight.m = out_;
    dweight.n = in;
    dweight.k = rows_;
    dweight.a = Transposed(out_);
    dweight.b = RowMajor(in);
    dweight.c = RowMajor(in);
    dx_ = Gemm::Make(dx, refusal);
    if (dx_ == nullptr) return false;
    dweight_ = Gemm::Make(dweight, refusal);
    if (dweight_ == nullptr) return false;
    size_t bytes = std::max(dx_->workspace_bytes(), dweight_->workspace_bytes());
    if (activation_ != Activation::kNone) {
      dz_ = layout_.Add(rows_ * out_ * sizeof(float));
      if (!GradientUsesOutput(activation_)) {
        bias_ = HasBias(spec);
        product_ = MakeProduct(spec.inputs[0].dims, spec.inputs[1].dims, bias_, Activation::kNone,
                               refusal);
        if (product_ == nullptr) return false;
        bytes = std::max(bytes, product_->workspace_bytes());
      }
    }
    bytes = std::max<size_t>(bytes, BlocksOf(rows_) * out_ * sizeof(float));
    scratch_ = layout_.Add(bytes);
    return true;
  }

  int64_t rows_ = 0, out_ = 0;
  Activation activation_ = Activation::kNone;
  bool bias_ = false;
  std::shared_ptr<Gemm> dx_, dweight_;
  std::shared_ptr<Gemm> product_;  // if the activation's gradient needs its input
  WorkspaceLayout layout_;
  size_t dz_ = 0, scratch_ = 0;
};

}  // namespace

void RegisterLinearCpu(KernelRegistry& registry) {
  registry.Add("linear", MakeStable);
  registry.Add("linear", ViaF32(MakeForward));
  registry.SupportsHorizontalFusion("linear", {});
  registry.Add("linear_grad", ViaF32(Backward::Make));
}

}  // namespace espalier
