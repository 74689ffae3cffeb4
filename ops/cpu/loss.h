// Losses and metrics that are sums of f(prediction, target) over elements.
#pragma once

#include <algorithm>
#include <memory>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/example_weights.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Returns the divisor of the sum: attributes `reduction` (absent: "mean") and `count`.
inline double DivisorOf(const Attributes& attributes) {
  if (attributes.String("reduction", "mean") == "sum") return 1.0;
  return static_cast<double>(attributes.Int("count"));
}

// prediction, target, example_weights? -> sum of f(prediction, target) / divisor.
template <typename F>
std::unique_ptr<Kernel> ElementLoss(F f, double divisor) {
  return MakeKernel([=](const KernelArgs& args) {
    const float* a = args.inputs[0].as<float>();
    const float* b = args.inputs[1].as<float>();
    const int64_t elements = args.inputs[0].num_elements();
    const ExampleWeights examples(args, 2, /*gradient=*/false, elements);
    const double sum = BlockedSum(elements, kParallelGrain, [&](int64_t begin, int64_t end) {
      double part = 0;
      float buffer[kSumBlock];
      for (int64_t i = begin, n; i < end; i += n) {
        n = examples.Run(i, std::min(kSumBlock, end - i));
        MapBinaryRow(f, a + i, 1, b + i, 1, buffer, n);
        part += examples[i] * SumBlock(buffer, n);
      }
      return part;
    });
    *args.outputs[0].as<float>() = static_cast<float>(sum / divisor);
    return KernelStatus::Ok();
  });
}

// prediction, target, example_weights?, dy -> the gradients of both; `slope` and `target_slope` are
// the derivatives of f.
template <typename Slope, typename TargetSlope>
std::unique_ptr<Kernel> ElementLossGradient(Slope slope, TargetSlope target_slope, double divisor) {
  return MakeKernel([=](const KernelArgs& args) {
    const float* a = args.inputs[0].as<float>();
    const float* b = args.inputs[1].as<float>();
    const double factor = *args.inputs.back().as<float>() / divisor;
    const int64_t elements = args.inputs[0].num_elements();
    const ExampleWeights examples(args, 2, /*gradient=*/true, elements);
    const auto run = [&](auto f, size_t output) {
      if (output >= args.outputs.size() || !args.outputs[output].present()) return;
      const TensorView& dx = args.outputs[output];
      if (examples.present()) {
        ParallelFor(elements, 1, [&, out = dx.as<float>()](int64_t begin, int64_t end) {
          for (int64_t i = begin, n; i < end; i += n) {
            n = examples.Run(i, end - i);
            MapBinaryRow([f, factor = static_cast<float>(factor * examples[i])](
                             float a, float b) { return factor * f(a, b); },
                         a + i, 1, b + i, 1, out + i, n);
          }
        });
        return;
      }
      MapBinary(
          [f, factor = static_cast<float>(factor)](float a, float b) { return factor * f(a, b); },
          a, b, dx.as<float>(), dx.num_elements());
    };
    run(slope, 0);
    run(target_slope, 1);
    return KernelStatus::Ok();
  });
}

}  // namespace espalier
