// rnn, gru and lstm: cuBLAS products over whole sequences where the state is not needed, and one
// product and one kernel per step where it is.
#include <utility>

#include "ops/cuda/convert.h"
#include "ops/cuda/gemm/cublas_gemm.h"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/recurrent_steps.h"

namespace espalier {
namespace cuda_recurrent {

using recurrent::Cell;
using recurrent::Problem;

// Element i of row-major [rows, columns].
template <typename F>
struct OnElements {
  F f;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    const int64_t n = i / columns, j = i % columns;
    if (f.Active(n)) {
      f.Run(n, j);
    } else {
      f.Idle(n, j);
    }
  }
};

// Without arguments only computes the workspace size.
class CudaMachine {
 public:
  CudaMachine() = default;
  CudaMachine(DeviceContexts* contexts, const KernelArgs* args, const char* op)
      : contexts_(contexts), args_(args), op_(op) {}

  size_t workspace_bytes() const { return taken_.bytes(); }
  const KernelStatus& status() const { return status_; }

  float* Take(int64_t count) {
    const size_t offset = taken_.Add(static_cast<size_t>(count) * sizeof(float));
    static float nowhere;
    return args_ != nullptr ? WorkspaceAt<float>(*args_, offset) : &nowhere;
  }

  void Gemm(const recurrent::Product& p) {
    if (args_ == nullptr || !status_.ok()) return;
    espalier::Gemm gemm;
    gemm.m = p.m;
    gemm.n = p.n;
    gemm.k = p.k;
    gemm.a = {p.a, p.a_transposed, p.lda, 0};
    gemm.b = {p.b, p.b_transposed, p.ldb, 0};
    gemm.c = p.c;
    gemm.ldc = p.ldc;
    gemm.beta = p.accumulate ? 1.0f : 0.0f;
    status_.error = RunGemm(*contexts_, gemm, args_->stream, op_).error;
  }

  template <typename F>
  void ForEach(const F& f, int64_t rows, int64_t columns) {
    if (args_ == nullptr || !status_.ok()) return;
    status_.error =
        espalier::ForEach(rows * columns, OnElements<F>{f, columns}, StreamOf(*args_), op_).error;
  }

  template <typename F>
  void WithActivations(const Problem& p, int64_t direction, const F& f) {
    f(p.activations[direction]);
  }

 private:
  DeviceContexts* contexts_ = nullptr;
  const KernelArgs* args_ = nullptr;
  const char* op_ = "";
  WorkspaceLayout taken_;
  KernelStatus status_;
};

struct LengthCheck {
  const int32_t* lengths;
  int64_t steps;
  FaultSink faults;
  __device__ void operator()(int64_t n) const {
    if (lengths[n] < 0 || lengths[n] > steps) {
      faults.Report(FaultKind::kRecurrentLength, n, lengths[n], steps);
    }
  }
};

class RecurrentKernel : public Kernel {
 public:
  RecurrentKernel(DeviceContexts& contexts, const KernelSpec& spec, const Problem& problem,
                  bool backward)
      : contexts_(contexts), op_(spec.op), problem_(problem), backward_(backward) {
    CudaMachine machine;
    RunOperator(machine, problem_, recurrent::PlannedViews(spec.inputs),
                recurrent::PlannedViews(spec.outputs), backward_);
    workspace_bytes_ = machine.workspace_bytes();
  }

  size_t workspace_bytes() const override { return workspace_bytes_; }

  KernelStatus Run(const KernelArgs& args) override {
    if (Has(args.inputs, 4)) {
      DeviceContext* context = nullptr;
      ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          ForEach(problem_.rows,
                  LengthCheck{args.inputs[4].as<int32_t>(), problem_.steps, context->faults()},
                  StreamOf(args), op_.c_str()));
    }
    CudaMachine machine(&contexts_, &args, op_.c_str());
    RunOperator(machine, problem_, args.inputs, args.outputs, backward_);
    return machine.status();
  }

 private:
  DeviceContexts& contexts_;
  const std::string op_;
  const Problem problem_;
  const bool backward_;
  size_t workspace_bytes_ = 0;
};

KernelFactory Factory(DeviceContexts& contexts, Cell cell, bool backward) {
  return [=, &contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesType(spec.inputs[0].dtype, {DType::kF32}, refusal)) return nullptr;
    return std::make_unique<RecurrentKernel>(
        contexts, spec, Problem::Make(cell, spec.attributes, spec.inputs[0], spec.inputs[1]),
        backward);
  };
}

}  // namespace cuda_recurrent

void RegisterRecurrentCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_recurrent;
  for (const auto& [name, cell] : {std::pair("rnn", Cell::kRnn), std::pair("gru", Cell::kGru),
                                   std::pair("lstm", Cell::kLstm)}) {
    registry.Add(name, InF32(Factory(contexts, cell, false)));
    registry.Add(std::string(name) + "_grad", InF32(Factory(contexts, cell, true)));
  }
}

}  // namespace espalier
