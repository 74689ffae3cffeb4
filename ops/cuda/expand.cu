#include "ops/cuda/binary.cuh"
#include "ops/cuda/copy.h"
#include "ops/cuda/reduce_sum_mean.cuh"

namespace espalier {
namespace cuda_expand {

KernelStatus Forward(const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  const Dims dense = DenseStrides(x.dims());
  const size_t missing = y.dims().size() - x.dims().size();
  Dims strides(y.dims().size(), 0);
  for (size_t d = 0; d < x.dims().size(); ++d) {
    if (x.dims()[d] == y.dims()[missing + d]) strides[missing + d] = dense[d];
  }
  return CopyStrided({x.dtype(), x.data, y.data, y.dims(), strides, DenseStrides(y.dims())},
                     StreamOf(args), "expand");
}

}  // namespace cuda_expand

void RegisterExpandCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_expand;
  registry.Add("expand", [](const KernelSpec&, std::string*) { return MakeKernel(Forward); });
  registry.Add(
      "expand_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
        return MakeKernel(
            [](const KernelArgs& args) {
              const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              if (dx.num_elements() == dy.num_elements()) {
                return CopyWhole(dy, dx, args.stream, "expand_grad");
              }
              return DispatchFloat(dx.dtype(), "expand_grad", [&](auto type) {
                using T = typename decltype(type)::T;
                return Reduce(BroadcastSum(dx.dims(), dy.dims()), ElementValue<T>{dy.as<T>()},
                              StoreScaled<T>{dx.as<T>(), 1.0f}, args.workspace, StreamOf(args),
                              "expand_grad");
              });
            },
            BroadcastSum(spec.outputs[0].dims, spec.inputs[0].dims).WorkspaceBytes());
      });
}

}  // namespace espalier
