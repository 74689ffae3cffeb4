// Training: oneDNN's matmul for y, dx and dw. Serving: StableLinear.
#include "ops/cpu/convert.h"
#include "ops/cpu/onednn.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/stable_linear.h"
#include "ops/cpu/workspace.h"

namespace espalier {
namespace {

// Row-major [rows, columns], or its transpose.
MatrixLayout RowMajor(int64_t columns) { return {0, columns, 1}; }
MatrixLayout Transposed(int64_t columns) { return {0, 1, columns}; }

std::unique_ptr<Kernel> MakeStable(const KernelSpec& spec, std::string* refusal) {
  if (!spec.row_stable) {
    *refusal = "the row-stable kernel is slower than oneDNN where stability is not asked for";
    return nullptr;
  }
  const DType dtype = spec.inputs[0].dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    *refusal = std::string("no row-stable kernel of its own for ") + Name(dtype);
    return nullptr;
  }
  return MakeKernel([](const KernelArgs& args) {
    const TensorView& x = args.inputs[0];
    const TensorView& weight = args.inputs[1];
    const bool bias = args.inputs.size() > 2 && args.inputs[2].present();
    StableLinear({x.dtype(), RowsOf(x.dims()), weight.dims()[1], weight.dims()[0], x.data,
                  weight.data, bias ? args.inputs[2].data : nullptr, args.outputs[0].data});
    return KernelStatus::Ok();
  });
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string* refusal) {
  if (spec.row_stable) {  // f16, by way of f32
    return MakeStable(spec, refusal);
  }
  const Dims& weight = spec.inputs[1].dims;
  const bool bias = spec.inputs.size() > 2 && spec.inputs[2].dtype != DType::kInvalid;
  GemmSpec problem;
  problem.m = RowsOf(spec.inputs[0].dims);
  problem.n = weight[0];
  problem.k = weight[1];
  problem.a = RowMajor(problem.k);
  problem.b = Transposed(problem.k);
  problem.c = RowMajor(problem.n);
  problem.bias = bias;
  std::shared_ptr<Gemm> gemm = Gemm::Make(problem, refusal);
  if (gemm == nullptr) return nullptr;
  return MakeKernel(
      [gemm, bias](const KernelArgs& args) {
        return KernelStatus{gemm->Run(args.inputs[0].as<float>(), args.inputs[1].as<float>(),
                                      bias ? args.inputs[2].as<float>() : nullptr,
                                      args.outputs[0].as<float>(), args.workspace)};
      },
      gemm->workspace_bytes());
}

// sums[j] = sum over rows of x[i, j], rows in order.
void SumRows(const float* x, int64_t rows, int64_t columns, float* sums) {
  ParallelRanges(columns, rows, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) sums[j] = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * columns;
      for (int64_t j = begin; j < end; ++j) sums[j] += row[j];
    }
  });
}

// x, weight, dy -> dx = dy weight, dweight = dy^T x, dbias = column sums of dy.
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string* refusal) {
  const int64_t rows = RowsOf(spec.inputs[0].dims);
  const int64_t out = spec.inputs[1].dims[0], in = spec.inputs[1].dims[1];
  GemmSpec dx;
  dx.m = rows;
  dx.n = in;
  dx.k = out;
  dx.a = RowMajor(out);
  dx.b = RowMajor(in);
  dx.c = RowMajor(in);
  GemmSpec dw;
  dw.m = out;
  dw.n = in;
  dw.k = rows;
  dw.a = Transposed(out);
  dw.b = RowMajor(in);
  dw.c = RowMajor(in);
  std::shared_ptr<Gemm> dx_gemm = Gemm::Make(dx, refusal);
  if (dx_gemm == nullptr) return nullptr;
  std::shared_ptr<Gemm> dw_gemm = Gemm::Make(dw, refusal);
  if (dw_gemm == nullptr) return nullptr;
  return MakeKernel(
      [=](const KernelArgs& args) {
        const float* x = args.inputs[0].as<float>();
        const float* weight = args.inputs[1].as<float>();
        const float* dy = args.inputs[2].as<float>();
        std::string error;
        if (args.outputs[0].present()) {
          error = dx_gemm->Run(dy, weight, nullptr, args.outputs[0].as<float>(), args.workspace);
        }
        if (error.empty() && args.outputs[1].present()) {
          error = dw_gemm->Run(dy, x, nullptr, args.outputs[1].as<float>(), args.workspace);
        }
        if (args.outputs.size() > 2 && args.outputs[2].present()) {
          SumRows(dy, rows, out, args.outputs[2].as<float>());
        }
        return KernelStatus{error};
      },
      std::max(dx_gemm->workspace_bytes(), dw_gemm->workspace_bytes()));
}

}  // namespace

void RegisterLinearCpu(KernelRegistry& registry) {
  registry.Add("linear", MakeStable);
  registry.Add("linear", ViaF32(MakeForward));
  registry.Add("linear_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
