#include "ops/cuda/fold.cuh"

namespace espalier {
namespace {

struct Finish {
  __device__ float operator()(float sum) const { return logf(sum); }
};

struct Gradient {
  __device__ float operator()(float x, float y, float dy) const { return dy / expf(y); }
};

}  // namespace

void RegisterReduceLogSumCuda(KernelRegistry& registry, DeviceContexts&) {
  AddFold</*integers=*/false>(registry, "reduce_log_sum", AsIs(), Finish());
  AddFoldGradient</*saves_input=*/false, /*saves_output=*/true>(registry, "reduce_log_sum_grad",
                                                                Gradient());
}

}  // namespace espalier
