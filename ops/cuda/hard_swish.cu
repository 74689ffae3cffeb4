#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_hard_swish {

// min(max(x, 0), 1), NaN for NaN.
__device__ __forceinline__ float Unit(float x) { return x < 0.0f ? 0.0f : (x > 1.0f ? 1.0f : x); }

struct HardSwish {
  __device__ float operator()(float x) const { return x * Unit((x + 3.0f) * (1.0f / 6.0f)); }
};
struct HardSwishGradient {
  __device__ float operator()(float x, float dy) const {
    if (x <= -3.0f) return 0.0f;
    return x >= 3.0f ? dy : dy * (x * (1.0f / 3.0f) + 0.5f);
  }
};

struct HardSigmoid {
  float alpha, beta;
  __device__ float operator()(float x) const { return Unit(alpha * x + beta); }
};
struct HardSigmoidGradient {  // of y
  float alpha;
  __device__ float operator()(float y, float dy) const {
    return y > 0.0f && y < 1.0f ? alpha * dy : 0.0f;
  }
};

}  // namespace cuda_hard_swish

void RegisterHardSwishCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_hard_swish;
  AddUnary(registry, "hard_swish", HardSwish(), HardSwishGradient());
  AddUnaryWith(
      registry, "hard_sigmoid",
      [](const Attributes& attributes) {
        return HardSigmoid{static_cast<float>(attributes.Float("alpha")),
                           static_cast<float>(attributes.Float("beta"))};
      },
      [](const Attributes& attributes) {
        return HardSigmoidGradient{static_cast<float>(attributes.Float("alpha"))};
      });
}

}  // namespace espalier
