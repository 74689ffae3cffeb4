// Activation formulas on f32 scalars, for the activation operators and for operators with a fused
// activation (attribute `activation`).
#pragma once

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/kernel/activation.h"

namespace espalier {

struct NoActivation {
  __device__ float operator()(float x) const { return x; }
};
struct NoActivationGradient {
  __device__ float operator()(float, float dy) const { return dy; }
};

struct Relu {
  // NaN stays.
  __device__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
};
struct ReluGradient {  // of y
  __device__ float operator()(float y, float dy) const { return y > 0.0f ? dy : 0.0f; }
};

struct Gelu {
  // erfcf keeps the lower tail's relative precision.
  __device__ float operator()(float x) const { return 0.5f * x * erfcf(-x * 0.707106781187f); }
};
struct GeluGradient {  // of x
  __device__ float operator()(float x, float dy) const {
    const float cumulative = 0.5f * erfcf(-x * 0.707106781187f);
    const float density = 0.398942280401f * expf(-0.5f * x * x);
    // Where the density has underflowed, x may be infinite.
    return dy * (cumulative + (density > 0.0f ? x * density : density));
  }
};

struct Silu {
  __device__ float operator()(float x) const { return x / (1.0f + expf(-x)); }
};
struct SiluGradient {  // of x
  __device__ float operator()(float x, float dy) const {
    const float s = 1.0f / (1.0f + expf(-x));
    return dy * s * (1.0f + x * (1.0f - s));
  }
};

struct Sigmoid {
  __device__ float operator()(float x) const { return 1.0f / (1.0f + expf(-x)); }
};
struct SigmoidGradient {  // of y
  __device__ float operator()(float y, float dy) const { return dy * y * (1.0f - y); }
};

struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct TanhGradient {  // of y
  __device__ float operator()(float y, float dy) const { return dy * (1.0f - y * y); }
};

// Returns f(formula, gradient's formula).
template <typename Function>
KernelStatus DispatchActivation(Activation activation, const Function& f) {
  switch (activation) {
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
    case Activation::kNone:
      break;
  }
  return f(NoActivation(), NoActivationGradient());
}

// One bias per channel of a tensor [..., channels, inner].
template <typename T>
struct ChannelBias {
  const T* bias;  // may be null
  int64_t channels, inner;
  __device__ float operator()(int64_t i) const {
    return bias == nullptr ? 0.0f : ToFloat(bias[i / inner % channels]);
  }
};

// y = f(z + bias); z may alias y.
template <typename T, typename Z, typename F>
struct BiasThenActivate {
  const Z* z;
  ChannelBias<T> bias;
  T* y;
  F f;
  __device__ void operator()(int64_t i) const { y[i] = FromFloat<T>(f(ToFloat(z[i]) + bias(i))); }
};

// dz = dy times the gradient of the activation at `saved` + bias; dz may alias `saved`.
template <typename T, typename S, typename G>
struct BeforeActivation {
  const S* saved;
  ChannelBias<T> bias;
  const T* dy;
  T* dz;
  G gradient;
  __device__ void operator()(int64_t i) const {
    dz[i] = FromFloat<T>(gradient(ToFloat(saved[i]) + bias(i), ToFloat(dy[i])));
  }
};

}  // namespace espalier
