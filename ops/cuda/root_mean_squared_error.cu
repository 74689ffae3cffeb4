#include "ops/cuda/loss.cuh"

namespace espalier {
namespace {

struct SquaredDistance {
  __device__ float operator()(float a, float b) const { return (a - b) * (a - b); }
};

}  // namespace

void RegisterRootMeanSquaredErrorCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("root_mean_squared_error", ForF32([](const KernelSpec& spec) {
                 return ElementLoss(spec, SquaredDistance{}, DivisorOf(spec.attributes),
                                    "root_mean_squared_error");
               }));
}

}  // namespace espalier
