#include "ops/cuda/reduce_generic.cuh"

namespace espalier {
namespace cuda_reduce_l1 {

struct Term {
  __device__ float operator()(float x) const { return fabsf(x); }
  // An integer by its bits: the sign makes it large.
  __device__ uint64_t operator()(uint64_t x) const { return x > 0 - x ? 0 - x : x; }
};

struct Gradient {
  __device__ float operator()(float x, float y, float dy) const {
    return x > 0.0f ? dy : (x < 0.0f ? -dy : 0.0f * x);
  }
};

}  // namespace cuda_reduce_l1

void RegisterReduceL1Cuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_reduce_l1;
  AddFold</*integers=*/true>(registry, "reduce_l1", Term(), AsIs());
  AddFoldGradient</*saves_input=*/true, /*saves_output=*/false>(registry, "reduce_l1_grad",
                                                                Gradient());
}

}  // namespace espalier
