#include "ops/cuda/reduce_generic.cuh"

namespace espalier {
namespace cuda_reduce_log_sum {

struct Finish {
  __device__ float operator()(float sum) const { return logf(sum); }
};

struct Gradient {
  __device__ float operator()(float x, float y, float dy) const { return dy / expf(y); }
};

}  // namespace cuda_reduce_log_sum

void RegisterReduceLogSumCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_reduce_log_sum;
  AddFold</*integers=*/false>(registry, "reduce_log_sum", AsIs(), Finish());
  AddFoldGradient</*saves_input=*/false, /*saves_output=*/true>(registry, "reduce_log_sum_grad",
                                                                Gradient());
}

}  // namespace espalier
