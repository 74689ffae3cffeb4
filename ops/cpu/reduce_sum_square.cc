#include "ops/cpu/reduce.h"

namespace espalier {

void RegisterReduceSumSquareCpu(KernelRegistry& registry) {
  AddFold(
      registry, "reduce_sum_square",
      [](const Attributes& attributes, const TensorView& x, const TensorView& y) {
        if (IsInteger(x.dtype())) {
          return SumIntegers(attributes, x, y, [](auto v) { return v * v; });
        }
        SumAxes(
            attributes, x, nullptr, [](float v, float) { return v * v; }, 1.0, y.as<float>(),
            y.num_elements());
      },
      // x, dy
      [](const Attributes& attributes, std::span<const TensorView> operands, const TensorView& dx) {
        const float* dy = operands[1].as<float>();
        SpreadAxes(attributes, operands[0].as<float>(), dy, dy, dx,
                   [](float v, float, float dy) { return 2.0f * v * dy; });
      });
}

}  // namespace espalier
