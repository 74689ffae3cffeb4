#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/strided.h"
#include "ops/cuda/top_k.h"
#include "ops/kernel/axis_lines.h"

namespace espalier {
namespace cuda_top_k {

// Indices of a line are distinct.
template <typename T>
struct PutBack {
  const int64_t* places;
  const T* dy;
  T* dx;
  int64_t length, inner, k;
  __device__ void operator()(int64_t i) const {
    dx[(i / (k * inner) * length + places[i]) * inner + i % inner] = dy[i];
  }
};

// indices, d_values (indices have no gradient) -> dx
KernelStatus Gradient(const KernelArgs& args, int64_t axis, int64_t k) {
  const TensorView &places = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      FillOnStream(dx.data, dx.dtype(), dx.num_elements(), 0, StreamOf(args)));
  if (!dy.present()) return KernelStatus::Ok();
  const AxisLines lines(dx.dims(), axis);
  return DispatchFloat(dx.dtype(), "top_k_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        dy.num_elements(),
        PutBack<T>{places.as<int64_t>(), dy.as<T>(), dx.as<T>(), lines.length, lines.inner, k},
        StreamOf(args), "top_k_grad");
  });
}

}  // namespace cuda_top_k

void RegisterTopKCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_top_k;
  registry.Add("top_k",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 const std::shared_ptr<TopKSort> sort = TopKSort::Make(spec, refusal);
                 if (sort == nullptr) return nullptr;
                 return MakeKernel(
                     [sort](const KernelArgs& args) {
                       return sort->Run(args.inputs[0], args.outputs[0], args.outputs[1], args);
                     },
                     sort->workspace_bytes());
               });
  registry.Add(
      "top_k_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
        return MakeKernel([axis = spec.attributes.Int("axis"), k = spec.attributes.Int("k")](
                              const KernelArgs& args) { return Gradient(args, axis, k); });
      });
}

}  // namespace espalier
