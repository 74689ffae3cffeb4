#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_is_nan {

struct IsNan {
  __device__ bool operator()(float x) const { return x != x; }
};

struct IsInf {
  bool negative, positive;
  __device__ bool operator()(float x) const {
    return (negative && x == -INFINITY) || (positive && x == INFINITY);
  }
};

}  // namespace cuda_is_nan

void RegisterIsNanCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_is_nan;
  AddUnaryForward(registry, "is_nan", [](const Attributes&) { return IsNan(); });
  AddUnaryForward(registry, "is_inf", [](const Attributes& attributes) {
    return IsInf{attributes.Bool("detect_negative"), attributes.Bool("detect_positive")};
  });
}

}  // namespace espalier
