#include <cmath>

#include "ops/cpu/reduce.h"

namespace espalier {

void RegisterReduceL2Cpu(KernelRegistry& registry) {
  AddFold(
      registry, "reduce_l2",
      [](const Attributes& attributes, const TensorView& x, const TensorView& y) {
        SumAxes(
            attributes, x, nullptr, [](float v, float) { return v * v; }, 1.0, y.as<float>(),
            y.num_elements());
        for (int64_t o = 0; o < y.num_elements(); ++o) {
          y.as<float>()[o] = std::sqrt(y.as<float>()[o]);
        }
      },
      // x, y, dy
      [](const Attributes& attributes, std::span<const TensorView> operands, const TensorView& dx) {
        const TensorView &y = operands[1], &dy = operands[2];
        std::vector<float> part(y.num_elements());
        for (size_t o = 0; o < part.size(); ++o) {
          const float norm = y.as<float>()[o];
          part[o] = norm == 0.0f ? 0.0f : dy.as<float>()[o] / norm;
        }
        SpreadAxes(attributes, operands[0].as<float>(), part.data(), part.data(), dx,
                   [](float v, float, float part) { return v * part; });
      });
}

}  // namespace espalier
