// Losses and metrics that are sums of f(prediction, target) over elements. `F` has
// `__device__ float operator()(float prediction, float target) const`.
#pragma once

#include <string>

#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {

inline ReduceShape OverAll(int64_t n) { return ReduceShape::Make({n}, {true}); }

// Returns the divisor of the sum: attributes `reduction` (absent: "mean") and `count`.
inline double DivisorOf(const Attributes& attributes) {
  if (attributes.String("reduction", "mean") == "sum") return 1.0;
  return static_cast<double>(attributes.Int("count", 1));
}

// The optional input `example_weights`: factors of the summands of a loss (elements, rows or
// labels, in row-major order), one per example; 1 without the input.
struct ExampleWeights {
  const float* weights = nullptr;
  int64_t per_example = 1;

  // `input` is the index of example_weights; a gradient kernel has dy behind it. `summands` is
  // their number.
  static ExampleWeights Of(const KernelArgs& args, size_t input, bool gradient, int64_t summands) {
    if (input + (gradient ? 1 : 0) >= args.inputs.size()) return {};
    const TensorView& view = args.inputs[input];
    if (!view.present() || view.num_elements() == 0 || summands == 0) return {};
    return {view.as<float>(), summands / view.num_elements()};
  }
  __device__ float operator[](int64_t summand) const {
    return weights != nullptr ? weights[summand / per_example] : 1.0f;
  }
};

struct StoredValue {
  const float* values;
  ExampleWeights examples;
  __device__ float operator()(int64_t i) const { return values[i] * examples[i]; }
};

template <typename F>
struct PairValue {
  const float* prediction;
  const float* target;
  ExampleWeights examples;
  F f;
  __device__ float operator()(int64_t i) const { return examples[i] * f(prediction[i], target[i]); }
};

template <typename F>
struct PairSlope {
  const float* prediction;
  const float* target;
  const float* dy;
  ExampleWeights examples;
  float* dx;
  double divisor;
  F f;
  __device__ void operator()(int64_t i) const {
    dx[i] = static_cast<float>(*dy / divisor) * examples[i] * f(prediction[i], target[i]);
  }
};

// `op` must be a literal, here and below.
template <typename F>
std::unique_ptr<Kernel> ElementLoss(const KernelSpec& spec, F f, double divisor, const char* op) {
  return MakeKernel(
      [=](const KernelArgs& args) {
        const TensorView& x = args.inputs[0];
        return Reduce(OverAll(x.num_elements()),
                      PairValue<F>{x.as<float>(), args.inputs[1].as<float>(),
                                   ExampleWeights::Of(args, 2, false, x.num_elements()), f},
                      StoreQuotient{args.outputs[0].as<float>(), divisor}, args.workspace,
                      StreamOf(args), op);
      },
      OverAll(spec.inputs[0].num_elements()).WorkspaceBytes());
}

// prediction, target, example_weights?, dy -> the gradients of both; Slope and TargetSlope are the
// derivatives of f.
template <typename Slope, typename TargetSlope>
std::unique_ptr<Kernel> ElementLossGradient(Slope slope, TargetSlope target_slope, double divisor,
                                            const char* op) {
  return MakeKernel([=](const KernelArgs& args) {
    const auto run = [&](auto f, size_t output) {
      if (!Has(args.outputs, output)) return KernelStatus::Ok();
      const TensorView& dx = args.outputs[output];
      return ForEach(dx.num_elements(),
                     PairSlope<decltype(f)>{args.inputs[0].as<float>(), args.inputs[1].as<float>(),
                                            args.inputs.back().as<float>(),
                                            ExampleWeights::Of(args, 2, true, dx.num_elements()),
                                            dx.as<float>(), divisor, f},
                     StreamOf(args), op);
    };
    ESPALIER_KERNEL_RETURN_IF_ERROR(run(slope, 0));
    return run(target_slope, 1);
  });
}

// Returns a factory for f32 that calls make(spec).
template <typename Make>
KernelFactory ForF32(Make make) {
  return [make](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesType(spec.inputs[0].dtype, {DType::kF32}, refusal)) return nullptr;
    return make(spec);
  };
}

}  // namespace espalier
