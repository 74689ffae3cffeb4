#include "ops/cuda/reduce_generic.cuh"

namespace espalier {
namespace cuda_reduce_sum_square {

struct Term {
  template <typename T>
  __device__ T operator()(T x) const {
    return x * x;
  }
};

struct Gradient {
  __device__ float operator()(float x, float y, float dy) const { return 2.0f * x * dy; }
};

}  // namespace cuda_reduce_sum_square

void RegisterReduceSumSquareCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_reduce_sum_square;
  AddFold</*integers=*/true>(registry, "reduce_sum_square", Term(), AsIs());
  AddFoldGradient</*saves_input=*/true, /*saves_output=*/false>(registry, "reduce_sum_square_grad",
                                                                Gradient());
}

}  // namespace espalier
