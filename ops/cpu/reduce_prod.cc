#include "ops/cpu/reduce.h"

namespace espalier {
namespace {

void Product(const Attributes& attributes, const TensorView& x, const TensorView& y) {
  const auto times = [](auto a, auto b) { return a * b; };
  const auto as_is = [](auto v) { return v; };
  if (x.dtype() == DType::kI32) return FoldInto<uint32_t>(attributes, x, y, 1u, as_is, times);
  if (x.dtype() == DType::kI64) {
    return FoldInto<uint64_t>(attributes, x, y, uint64_t{1}, as_is, times);
  }
  FoldInto<float>(
      attributes, x, y, 1.0, [](float v) { return static_cast<double>(v); }, times);
}

// The gradient of an element is dy times the product of the others: of all of them without zeros,
// divided by the element; with one zero, that one alone gets any.
void Gradient(const Attributes& attributes, std::span<const TensorView> operands,
              const TensorView& dx) {
  const TensorView &x = operands[0], &dy = operands[1];
  const int64_t count = dy.num_elements();
  const std::vector<double> products = FoldAxes<float>(
      attributes, x, count, 1.0, [](float v) { return v == 0.0f ? 1.0 : static_cast<double>(v); },
      [](double a, double b) { return a * b; });
  std::vector<float> zeros(count), part(count);
  SumAxes(
      attributes, x, nullptr, [](float v, float) { return v == 0.0f ? 1.0f : 0.0f; }, 1.0,
      zeros.data(), count);
  for (int64_t o = 0; o < count; ++o) {
    part[o] = zeros[o] > 1.0f ? 0.0f : static_cast<float>(products[o] * dy.as<float>()[o]);
  }
  SpreadAxes(attributes, x.as<float>(), zeros.data(), part.data(), dx,
             [](float v, float zeros, float part) {
               return zeros == 0.0f ? part / v : (v == 0.0f ? part : 0.0f);
             });
}

}  // namespace

void RegisterReduceProdCpu(KernelRegistry& registry) {
  AddFold(registry, "reduce_prod", Product, Gradient);
}

}  // namespace espalier
