#include "ops/cpu/reduce.h"

#include "ops/cpu/elementwise.h"

namespace espalier {
namespace {

void Reduce(const Attributes& attributes, double scale, const TensorView& x, const TensorView& y) {
  if (IsInteger(x.dtype())) {
    return SumIntegers(attributes, x, y, [](auto v) { return v; });
  }
  if (x.num_elements() == y.num_elements()) {
    const float factor = static_cast<float>(scale);
    MapUnary([factor](float v) { return v * factor; }, x.as<float>(), y.as<float>(),
             y.num_elements());
    return;
  }
  const float* data = x.as<float>();
  const auto values = [data](const RowOffsets& at, int64_t begin, int64_t, float*) {
    return data + at[0] + begin;
  };
  SumOver(ReductionNest(attributes, x.dims()), 1, values, scale, y.as<float>(), y.num_elements());
}

double ScaleOf(const Attributes& attributes) {
  return attributes.Has("count") ? 1.0 / static_cast<double>(attributes.Int("count")) : 1.0;
}

}  // namespace

Dims KeptDims(const Attributes& attributes, Dims x) {
  const std::vector<int64_t> axes = attributes.Ints("axes");
  if (axes.empty()) return Dims(x.size(), 1);
  for (int64_t axis : axes) x[axis < 0 ? axis + static_cast<int64_t>(x.size()) : axis] = 1;
  return x;
}

void AddReduction(KernelRegistry& registry, const std::string& name) {
  AddFold(
      registry, name,
      [](const Attributes& attributes, const TensorView& x, const TensorView& y) {
        Reduce(attributes, ScaleOf(attributes), x, y);
      },
      [](const Attributes& attributes, std::span<const TensorView> operands, const TensorView& dx) {
        const float scale = static_cast<float>(ScaleOf(attributes));
        const float* dy = operands[0].as<float>();
        SpreadAxes(attributes, nullptr, dy, dy, dx,
                   [scale](float, float, float dy) { return dy * scale; });
      });
}

}  // namespace espalier
