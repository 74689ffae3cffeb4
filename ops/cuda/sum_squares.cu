#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_sum_squares {

template <typename T>
struct Square {
  const T* x;
  __device__ float operator()(int64_t i) const {
    const float value = ToFloat(x[i]);
    return value * value;
  }
};

ReduceShape Whole(int64_t n) { return ReduceShape::Make({n}, {true}); }

}  // namespace cuda_sum_squares

void RegisterSumSquaresCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_sum_squares;
  registry.Add("sum_squares",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel(
                     [](const KernelArgs& args) {
                       const TensorView& x = args.inputs[0];
                       return DispatchFloat(x.dtype(), "sum_squares", [&](auto type) {
                         using T = typename decltype(type)::T;
                         return Reduce(Whole(x.num_elements()), Square<T>{x.as<T>()},
                                       StoreScaled<float>{args.outputs[0].as<float>(), 1.0f},
                                       args.workspace, StreamOf(args), "sum_squares");
                       });
                     },
                     Whole(spec.inputs[0].num_elements()).WorkspaceBytes());
               });
}

}  // namespace espalier
