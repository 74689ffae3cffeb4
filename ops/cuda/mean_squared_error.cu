#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_mean_squared_error {

struct SquaredDistance {
  __device__ float operator()(float a, float b) const { return (a - b) * (a - b); }
};
struct Slope {
  float factor;
  __device__ float operator()(float a, float b) const { return factor * (a - b); }
};

}  // namespace cuda_mean_squared_error

void RegisterMeanSquaredErrorCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_mean_squared_error;
  registry.Add("mean_squared_error", ForF32([](const KernelSpec& spec) {
                 return ElementLoss(spec, SquaredDistance{}, DivisorOf(spec.attributes),
                                    "mean_squared_error");
               }));
  registry.Add("mean_squared_error_grad", ForF32([](const KernelSpec& spec) {
                 return ElementLossGradient(Slope{2.0f}, Slope{-2.0f}, DivisorOf(spec.attributes),
                                            "mean_squared_error_grad");
               }));
}

}  // namespace espalier
