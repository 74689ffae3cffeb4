#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_leaky_relu {

struct LeakyRelu {
  float alpha;
  __device__ float operator()(float x) const { return x > 0.0f ? x : alpha * x; }
};
struct LeakyReluGradient {
  float alpha;
  __device__ float operator()(float x, float dy) const { return x > 0.0f ? dy : alpha * dy; }
};

struct ThresholdedRelu {
  float alpha;
  __device__ float operator()(float x) const { return x <= alpha ? 0.0f : x; }
};
struct ThresholdedReluGradient {
  float alpha;
  __device__ float operator()(float x, float dy) const { return x > alpha ? dy : 0.0f; }
};

struct Shrink {
  float bias, lambd;
  __device__ float operator()(float x) const {
    if (x < -lambd) return x + bias;
    if (x > lambd) return x - bias;
    return x == x ? 0.0f : x;
  }
};
struct ShrinkGradient {
  float lambd;
  __device__ float operator()(float x, float dy) const {
    return x < -lambd || x > lambd ? dy : 0.0f;
  }
};

float Number(const Attributes& attributes, const char* name) {
  return static_cast<float>(attributes.Float(name));
}

// F and G have the one member alpha.
template <typename F, typename G>
void AddWithAlpha(KernelRegistry& registry, const char* name) {
  AddUnaryWith(
      registry, name, [](const Attributes& attributes) { return F{Number(attributes, "alpha")}; },
      [](const Attributes& attributes) { return G{Number(attributes, "alpha")}; });
}

}  // namespace cuda_leaky_relu

void RegisterLeakyReluCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_leaky_relu;
  AddWithAlpha<LeakyRelu, LeakyReluGradient>(registry, "leaky_relu");
  AddWithAlpha<ThresholdedRelu, ThresholdedReluGradient>(registry, "thresholded_relu");
  AddUnaryWith(
      registry, "shrink",
      [](const Attributes& attributes) {
        return Shrink{Number(attributes, "bias"), Number(attributes, "lambd")};
      },
      [](const Attributes& attributes) { return ShrinkGradient{Number(attributes, "lambd")}; });
}

}  // namespace espalier
