#include <cmath>
#include <limits>

#include "ops/cpu/reduce.h"
#include "ops/cpu/simd/f32_math.h"

namespace espalier {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void Forward(const Attributes& attributes, const TensorView& x, const TensorView& y) {
  const int64_t count = y.num_elements();
  std::vector<float> most = FoldAxes<float>(
      attributes, x, count, -kInfinity, [](float v) { return v; },
      [](float a, float b) { return b > a || b != b ? b : a; });
  // An infinite one is the result; subtracting it would make NaN of it.
  for (float& m : most) m = std::abs(m) == kInfinity ? 0.0f : m;
  SumAxes(
      attributes, x, most.data(), [](float v, float m) { return FastExp(v - m); }, 1.0,
      y.as<float>(), count);
  for (int64_t o = 0; o < count; ++o) y.as<float>()[o] = most[o] + std::log(y.as<float>()[o]);
}

// x, y, dy. Where y is infinite, so is the slope of its logarithm: those gradients count as 0.
void Gradient(const Attributes& attributes, std::span<const TensorView> operands,
              const TensorView& dx) {
  const TensorView &y = operands[1], &dy = operands[2];
  const int64_t count = y.num_elements();
  std::vector<float> shift(count), part(count);
  for (int64_t o = 0; o < count; ++o) {
    const bool infinite = std::abs(y.as<float>()[o]) == kInfinity;
    shift[o] = infinite ? kInfinity : y.as<float>()[o];
    part[o] = infinite ? 0.0f : dy.as<float>()[o];
  }
  SpreadAxes(attributes, operands[0].as<float>(), shift.data(), part.data(), dx,
             [](float v, float shift, float part) {
               return part == 0.0f ? 0.0f : part * FastExp(v - shift);
             });
}

}  // namespace

void RegisterReduceLogSumExpCpu(KernelRegistry& registry) {
  AddFold(registry, "reduce_log_sum_exp", Forward, Gradient);
}

}  // namespace espalier
