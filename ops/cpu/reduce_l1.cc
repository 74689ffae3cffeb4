#include "ops/cpu/reduce.h"

namespace espalier {

void RegisterReduceL1Cpu(KernelRegistry& registry) {
  AddFold(
      registry, "reduce_l1",
      [](const Attributes& attributes, const TensorView& x, const TensorView& y) {
        if (IsInteger(x.dtype())) {
          return SumIntegers(attributes, x, y, [](auto v) {
            const auto negative = static_cast<decltype(v)>(0 - v);
            return v > negative ? negative : v;  // the sign bit makes an unsigned number large
          });
        }
        SumAxes(
            attributes, x, nullptr, [](float v, float) { return v < 0.0f ? -v : v; }, 1.0,
            y.as<float>(), y.num_elements());
      },
      // x, dy
      [](const Attributes& attributes, std::span<const TensorView> operands, const TensorView& dx) {
        const float* dy = operands[1].as<float>();
        SpreadAxes(attributes, operands[0].as<float>(), dy, dy, dx, [](float v, float, float dy) {
          return v > 0.0f ? dy : (v < 0.0f ? -dy : 0.0f * v);
        });
      });
}

}  // namespace espalier
