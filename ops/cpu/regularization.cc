#include <algorithm>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterRegularizationCpu(KernelRegistry& registry) {
  registry.Add("regularization_loss", [](const KernelSpec& spec, std::string*) {
    const double l1 = spec.attributes.Float("l1"), l2 = spec.attributes.Float("l2");
    return MakeKernel([l1, l2](const KernelArgs& args) {
      const float* p = args.inputs[0].as<float>();
      const double sum = BlockedSum(
          args.inputs[0].num_elements(), kParallelGrain, [&](int64_t begin, int64_t end) {
            double magnitudes = 0, squares = 0;
            for (int64_t i = begin; i < end; i += kSumBlock) {
              const int64_t n = std::min(kSumBlock, end - i);
              magnitudes += SumTerms(p + i, n, [](float v) { return v < 0.0f ? -v : v; });
              squares += SumTerms(p + i, n, [](float v) { return v * v; });
            }
            return l1 * magnitudes + l2 * squares;
          });
      *args.outputs[0].as<float>() = static_cast<float>(sum);
      return KernelStatus::Ok();
    });
  });
  registry.Add("regularize_gradient", [](const KernelSpec& spec, std::string*) {
    const float l1 = static_cast<float>(spec.attributes.Float("l1"));
    const float slope = static_cast<float>(2.0 * spec.attributes.Float("l2"));
    return MakeKernel([l1, slope](const KernelArgs& args) {
      const TensorView& out = args.outputs[0];
      const bool scaled = args.inputs.size() > 2 && args.inputs[2].present();
      const float scale = scaled ? *args.inputs[2].as<float>() : 1.0f;
      MapBinary(
          [step = scale * l1, slope = scale * slope](float p, float g) {
            const float sign = static_cast<float>((p > 0.0f) - (p < 0.0f));
            return g + step * sign + slope * p;
          },
          args.inputs[0].as<float>(), args.inputs[1].as<float>(), out.as<float>(),
          out.num_elements());
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
