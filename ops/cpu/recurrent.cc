// rnn, gru and lstm: oneDNN products over whole sequences where the state is not needed, and one
// product per step where it is.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/onednn/onednn.h"
#include "ops/cpu/simd/f32_math.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"
#include "ops/kernel/recurrent_steps.h"

namespace espalier {
namespace {

using recurrent::Cell;
using recurrent::Problem;
using recurrent::Product;

struct FastSigmoidActivation {
  float operator()(float x) const { return FastSigmoid(x); }
  float Slope(float, float y) const { return y * (1.0f - y); }
};
struct FastTanhActivation {
  float operator()(float x) const { return FastTanh(x); }
  float Slope(float, float y) const { return 1.0f - y * y; }
};

// What a run needs: its products by shape, and its scratch memory.
struct Plan {
  using Key = std::array<int64_t, 9>;
  std::map<Key, std::unique_ptr<Gemm>> gemms;
  size_t scratch_bytes = 0;  // of the products, behind the blocks
  WorkspaceLayout blocks;
};

// The planning run (without memory) records the plan that other runs follow.
class CpuMachine {
 public:
  explicit CpuMachine(Plan* plan) : plan_(plan) {}
  CpuMachine(Plan* plan, void* workspace) : plan_(plan), workspace_(workspace) {}

  const std::string& error() const { return error_; }

  float* Take(int64_t count) {
    const size_t offset = taken_.Add(static_cast<size_t>(count) * sizeof(float));
    if (!dry()) return WorkspaceAt<float>(workspace_, offset);
    plan_->blocks = taken_;
    static float nowhere;
    return &nowhere;
  }

  void Gemm(const Product& p) {
    if (!error_.empty()) return;
    const Plan::Key key = {p.m,   p.n,   p.k,         p.a_transposed, p.lda, p.b_transposed,
                           p.ldb, p.ldc, p.accumulate};
    std::unique_ptr<espalier::Gemm>& gemm = plan_->gemms[key];
    if (gemm == nullptr) {
      gemm = Make(p);
      if (gemm == nullptr) return;
      plan_->scratch_bytes = std::max(plan_->scratch_bytes, gemm->workspace_bytes());
    }
    if (dry()) return;
    error_ =
        gemm->Run(p.a, p.b, nullptr, p.c, WorkspaceAt<char>(workspace_, plan_->blocks.bytes()));
  }

  template <typename F>
  void ForEach(const F& f, int64_t rows, int64_t columns) {
    if (dry() || !error_.empty()) return;
    ParallelFor(rows, 8 * columns, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        if (!f.Active(n)) {
          for (int64_t j = 0; j < columns; ++j) f.Idle(n, j);
        } else if constexpr (requires { f.act.g.function; }) {  // a choice by element: no vectors
          for (int64_t j = 0; j < columns; ++j) f.Run(n, j);
        } else {
          Vectorize(
              [](F f, int64_t n, int64_t columns) {
#pragma omp simd
                for (int64_t j = 0; j < columns; ++j) f.Run(n, j);
              },
              f, n, columns);
        }
      }
    });
  }

  template <typename F>
  void WithActivations(const Problem& p, int64_t direction, const F& f) {
    if (p.defaults) {
      f(recurrent::ActivationSet<FastSigmoidActivation, FastTanhActivation>());
    } else {
      f(p.activations[direction]);
    }
  }

 private:
  bool dry() const { return workspace_ == nullptr; }

  std::unique_ptr<espalier::Gemm> Make(const Product& p) {
    GemmSpec spec;
    spec.m = p.m;
    spec.n = p.n;
    spec.k = p.k;
    spec.a = p.a_transposed ? MatrixLayout{0, 1, p.lda} : MatrixLayout{0, p.lda, 1};
    spec.b = p.b_transposed ? MatrixLayout{0, 1, p.ldb} : MatrixLayout{0, p.ldb, 1};
    spec.c = {0, p.ldc, 1};
    spec.accumulate = p.accumulate;
    return espalier::Gemm::Make(spec, &error_);
  }

  Plan* plan_;
  void* workspace_ = nullptr;
  WorkspaceLayout taken_;
  std::string error_;
};

// A length outside [0, S] is an error of the data.
std::string CheckLengths(const std::string& op, const TensorView& lengths, int64_t steps) {
  for (int64_t n = 0; n < lengths.num_elements(); ++n) {
    const int32_t length = lengths.as<int32_t>()[n];
    if (length >= 0 && length <= steps) continue;
    return op + ": length " + std::to_string(length) + " of sample " + std::to_string(n) +
           " is not in [0, " + std::to_string(steps) + "]";
  }
  return "";
}

class RecurrentKernel : public Kernel {
 public:
  RecurrentKernel(const KernelSpec& spec, const Problem& problem, bool backward)
      : op_(spec.op), problem_(problem), backward_(backward) {
    const std::vector<TensorView> inputs = recurrent::PlannedViews(spec.inputs);
    const std::vector<TensorView> outputs = recurrent::PlannedViews(spec.outputs);
    CpuMachine machine(&plan_);
    RunOperator(machine, problem_, inputs, outputs, backward_);
    error_ = machine.error();
  }

  const std::string& error() const { return error_; }
  // At least one byte: a run without memory is the planning run.
  size_t workspace_bytes() const override {
    return plan_.blocks.bytes() + std::max<size_t>(1, plan_.scratch_bytes);
  }

  KernelStatus Run(const KernelArgs& args) override {
    if (args.inputs.size() > 4 && args.inputs[4].present()) {
      std::string error = CheckLengths(op_, args.inputs[4], problem_.steps);
      if (!error.empty()) return {error};
    }
    CpuMachine machine(&plan_, args.workspace);
    RunOperator(machine, problem_, args.inputs, args.outputs, backward_);
    return {machine.error()};
  }

 private:
  const std::string op_;
  const Problem problem_;
  const bool backward_;
  Plan plan_;
  std::string error_;
};

KernelFactory Factory(Cell cell, bool backward) {
  return [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    const Problem problem = Problem::Make(cell, spec.attributes, spec.inputs[0], spec.inputs[1]);
    auto kernel = std::make_unique<RecurrentKernel>(spec, problem, backward);
    if (kernel->error().empty()) return kernel;
    *refusal = kernel->error();
    return nullptr;
  };
}

}  // namespace

void RegisterRecurrentCpu(KernelRegistry& registry) {
  for (const auto& [name, cell] : {std::pair("rnn", Cell::kRnn), std::pair("gru", Cell::kGru),
                                   std::pair("lstm", Cell::kLstm)}) {
    registry.Add(name, ViaF32(Factory(cell, false)));
    registry.Add(std::string(name) + "_grad", ViaF32(Factory(cell, true)));
  }
}

}  // namespace espalier
