#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_prelu {

struct Forward {
  __device__ float operator()(float x, float slope) const { return x > 0.0f ? x : x * slope; }
};

struct GradientX {
  __device__ float operator()(float dy, float x, float slope) const {
    return x > 0.0f ? dy : dy * slope;
  }
};

struct GradientSlope {
  __device__ float operator()(float dy, float x, float) const { return x > 0.0f ? 0.0f : dy * x; }
};

}  // namespace cuda_prelu

void RegisterPreluCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_prelu;
  AddBinary(registry, "prelu", Forward());
  AddBinaryGradient</*saves_inputs=*/true>(registry, "prelu_grad", GradientX(), GradientSlope());
}

}  // namespace espalier
