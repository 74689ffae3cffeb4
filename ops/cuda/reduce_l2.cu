#include "ops/cuda/fold.cuh"

namespace espalier {
namespace {

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

}  // namespace

void RegisterReduceL2Cuda(KernelRegistry& registry, DeviceContexts&) {
  AddFold</*integers=*/false>(registry, "reduce_l2", Term(), Finish());
  AddFoldGradient</*saves_input=*/true, /*saves_output=*/true>(registry, "reduce_l2_grad",
                                                               Gradient());
}

}  // namespace espalier
