#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_mean_absolute_error {

struct Distance {
  __device__ float operator()(float a, float b) const { return fabsf(a - b); }
};
// Zero where they are equal.
struct Slope {
  float sign;
  __device__ float operator()(float a, float b) const {
    return a > b ? sign : a < b ? -sign : 0.0f;
  }
};

}  // namespace cuda_mean_absolute_error

void RegisterMeanAbsoluteErrorCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_mean_absolute_error;
  registry.Add("mean_absolute_error", ForF32([](const KernelSpec& spec) {
                 return ElementLoss(spec, Distance{}, DivisorOf(spec.attributes),
                                    "mean_absolute_error");
               }));
  registry.Add("mean_absolute_error_grad", ForF32([](const KernelSpec& spec) {
                 return ElementLossGradient(Slope{1.0f}, Slope{-1.0f}, DivisorOf(spec.attributes),
                                            "mean_absolute_error_grad");
               }));
}

}  // namespace espalier
