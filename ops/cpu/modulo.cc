#include <cmath>

#include "ops/cpu/integer_division.h"

namespace espalier {
namespace {

// a - q * b, q = a / b towards zero: exactly.
struct Truncating {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return Remainder(a, b);
    } else {
      // Up to here the quotient in f64 truncates rightly, and product and difference are exact.
      constexpr double kExact = 0x1p28;
      const double quotient = static_cast<double>(a) / static_cast<double>(b);
      if (!(std::abs(quotient) < kExact)) return std::fmod(a, b);
      if (std::abs(quotient) < 1.0) return a;  // b may be infinite
      const double whole = static_cast<double>(static_cast<int32_t>(quotient));
      return static_cast<T>(static_cast<double>(a) - whole * static_cast<double>(b));
    }
  }
};

// The same with q rounded down.
struct Flooring {
  template <typename T>
  T operator()(T a, T b) const {
    return WithSignOf(b, Truncating()(a, b));
  }
};

// dy * dr/db with a constant quotient q: -q.
template <typename F>
float GradientB(float dy, float a, float b) {
  return -dy * std::rint((a - F()(a, b)) / b);
}

template <typename F>
KernelStatus Forward(const KernelArgs& args) {
  KernelStatus status = CheckDivisor("modulo", args);
  if (!status.ok()) return status;
  return RunBinary<Takes::kNumbers>("modulo", F(), args);
}

template <typename F>
KernelStatus Backward(const KernelArgs& args) {
  return RunBinaryGradient</*saves_inputs=*/true>(
      [](float dy, float, float) { return dy; },
      [](float dy, float a, float b) { return GradientB<F>(dy, a, b); }, args);
}

bool Truncates(const KernelSpec& spec) { return spec.attributes.Bool("fmod"); }

}  // namespace

void RegisterModuloCpu(KernelRegistry& registry) {
  registry.Add("modulo", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel(Truncates(spec) ? Forward<Truncating> : Forward<Flooring>);
               }));
  registry.Add("modulo_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel(Truncates(spec) ? Backward<Truncating> : Backward<Flooring>);
               }));
}

}  // namespace espalier
