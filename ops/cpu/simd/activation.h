// Activation formulas on scalars, for the activation operators and for operators with a fused
// activation (attribute `activation`).
#pragma once

#include <cstdint>

#include "ops/cpu/simd/f32_math.h"
#include "ops/kernel/activation.h"

namespace espalier {

struct Relu {
  float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};
struct ReluGradient {  // of y
  float operator()(float y, float dy) const { return y <= 0.0f ? 0.0f : dy; }
};

struct Gelu {
  float operator()(float x) const { return x * FastNormal(x).cumulative; }
};
struct GeluGradient {  // of x
  float operator()(float x, float dy) const {
    const Normal normal = FastNormal(x);
    // Where the density has underflowed, x may be infinite.
    return dy * (normal.cumulative + (normal.density > 0.0f ? x * normal.density : normal.density));
  }
};

struct Silu {
  float operator()(float x) const { return x * FastSigmoid(x); }
};
struct SiluGradient {  // of x
  float operator()(float x, float dy) const {
    const float s = FastSigmoid(x);
    return dy * s * (1.0f + x * (1.0f - s));
  }
};

struct Sigmoid {
  float operator()(float x) const { return FastSigmoid(x); }
};
struct SigmoidGradient {  // of y
  float operator()(float y, float dy) const { return dy * (1.0f - y) * y; }
};

struct Tanh {
  float operator()(float x) const { return FastTanh(x); }
};
struct TanhGradient {  // of y
  float operator()(float y, float dy) const { return dy * (1.0f - y * y); }
};

// In place: x = f(x) over n elements.
void Activate(Activation activation, float* x, int64_t n);

// dx = gradient of f at `saved` (see GradientUsesOutput) times dy; dx may alias `saved`.
void ActivationGradient(Activation activation, const float* saved, const float* dy, float* dx,
                        int64_t n);

}  // namespace espalier
