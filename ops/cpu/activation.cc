#include "ops/cpu/simd/activation.h"

#include "ops/cpu/elementwise.h"

namespace espalier {
namespace {

// Calls f(formula, gradient's formula).
template <typename F>
void WithActivation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kRelu:
      return f(Relu(), ReluGradient());
    case Activation::kGelu:
      return f(Gelu(), GeluGradient());
    case Activation::kSilu:
      return f(Silu(), SiluGradient());
    case Activation::kSigmoid:
      return f(Sigmoid(), SigmoidGradient());
    case Activation::kTanh:
      return f(Tanh(), TanhGradient());
  }
}

}  // namespace

void Activate(Activation activation, float* x, int64_t n) {
  WithActivation(activation, [&](auto f, auto) { MapUnary(f, x, x, n); });
}

void ActivationGradient(Activation activation, const float* saved, const float* dy, float* dx,
                        int64_t n) {
  WithActivation(activation, [&](auto, auto gradient) { MapBinary(gradient, saved, dy, dx, n); });
}

}  // namespace espalier
