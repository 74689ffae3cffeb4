#include "ops/cpu/layout/axis_slices.h"
#include "ops/cpu/scatter.h"

namespace espalier {

void RegisterGatherElementsCpu(KernelRegistry& registry) {
  registry.Add("gather_elements", [](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.inputs[0].dims.size());
    return MakeKernel([axis](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      KernelStatus status;
      WithBits(x.dtype(), [&](auto bits) {
        using T = decltype(bits);
        const T* from = x.as<T>();
        T* to = y.as<T>();
        status = ForElements("gather_elements", args.inputs[1], x.dims(), axis,
                             [=](int64_t i, int64_t target) { to[i] = from[target]; });
      });
      return status;
    });
  });
  // indices, dy
  registry.Add("gather_elements_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 const size_t axis = AxisOf(spec.attributes, spec.outputs[0].dims.size());
                 return MakeKernel([axis](const KernelArgs& args) {
                   const TensorView& dx = args.outputs[0];
                   const float* from = args.inputs[1].as<float>();
                   float* to = dx.as<float>();
                   std::memset(dx.data, 0, dx.spec.bytes());
                   return ForElements("gather_elements", args.inputs[0], dx.dims(), axis,
                                      [=](int64_t i, int64_t target) { to[target] += from[i]; });
                 });
               }));
}

}  // namespace espalier
