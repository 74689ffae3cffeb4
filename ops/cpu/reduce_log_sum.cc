#include <cmath>

#include "ops/cpu/reduce.h"

namespace espalier {

void RegisterReduceLogSumCpu(KernelRegistry& registry) {
  AddFold(
      registry, "reduce_log_sum",
      [](const Attributes& attributes, const TensorView& x, const TensorView& y) {
        SumAxes(
            attributes, x, nullptr, [](float v, float) { return v; }, 1.0, y.as<float>(),
            y.num_elements());
        for (int64_t o = 0; o < y.num_elements(); ++o) {
          y.as<float>()[o] = std::log(y.as<float>()[o]);
        }
      },
      // y, dy: the gradient is dy / sum
      [](const Attributes& attributes, std::span<const TensorView> operands, const TensorView& dx) {
        std::vector<float> part(operands[1].num_elements());
        for (size_t o = 0; o < part.size(); ++o) {
          const double sum = std::exp(static_cast<double>(operands[0].as<float>()[o]));
          part[o] = static_cast<float>(operands[1].as<float>()[o] / sum);
        }
        SpreadAxes(attributes, nullptr, part.data(), part.data(), dx,
                   [](float, float, float part) { return part; });
      });
}

}  // namespace espalier
