#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct IsNan {
  __device__ bool operator()(float x) const { return x != x; }
};

struct IsInf {
  bool negative, positive;
  __device__ bool operator()(float x) const {
    return (negative && x == -INFINITY) || (positive && x == INFINITY);
  }
};

}  // namespace

void RegisterIsNanCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnaryForward(registry, "is_nan", [](const Attributes&) { return IsNan(); });
  AddUnaryForward(registry, "is_inf", [](const Attributes& attributes) {
    return IsInf{attributes.Bool("detect_negative"), attributes.Bool("detect_positive")};
  });
}

}  // namespace espalier
