#include "ops/cuda/reduce_generic.cuh"

namespace espalier {
namespace cuda_reduce_l2 {

struct Term {
  template <typename T>
  __device__ T operator()(T x) const {
    return x * x;
  }
};

struct Finish {
  __device__ float operator()(float sum) const { return sqrtf(sum); }
};

struct Gradient {
  __device__ float operator()(float x, float y, float dy) const {
    return y == 0.0f ? 0.0f : x * (dy / y);
  }
};

}  // namespace cuda_reduce_l2

void RegisterReduceL2Cuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_reduce_l2;
  AddFold</*integers=*/false>(registry, "reduce_l2", Term(), Finish());
  AddFoldGradient</*saves_input=*/true, /*saves_output=*/true>(registry, "reduce_l2_grad",
                                                               Gradient());
}

}  // namespace espalier
