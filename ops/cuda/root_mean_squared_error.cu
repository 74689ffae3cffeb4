#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_root_mean_squared_error {

struct SquaredDistance {
  __device__ float operator()(float a, float b) const { return (a - b) * (a - b); }
};

}  // namespace cuda_root_mean_squared_error

void RegisterRootMeanSquaredErrorCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_root_mean_squared_error;
  registry.Add("root_mean_squared_error", ForF32([](const KernelSpec& spec) {
                 return ElementLoss(spec, SquaredDistance{}, DivisorOf(spec.attributes),
                                    "root_mean_squared_error");
               }));
}

}  // namespace espalier
