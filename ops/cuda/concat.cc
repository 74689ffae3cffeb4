#include "ops/cuda/axis_slices.h"

namespace espalier {

void RegisterConcatCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("concat", [](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.outputs[0].dims.size());
    return MakeKernel([axis](const KernelArgs& args) {
      int64_t start = 0;
      for (const TensorView& x : args.inputs) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            CopyIntoWhole(x, args.outputs[0], axis, start, args.stream));
        start += x.dims()[axis];
      }
      return KernelStatus::Ok();
    });
  });
  registry.Add("concat_grad", [](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.inputs[0].dims.size());
    return MakeKernel([axis, sizes = spec.attributes.Ints("sizes")](const KernelArgs& args) {
      int64_t start = 0;
      for (size_t i = 0; i < args.outputs.size(); ++i) {
        if (args.outputs[i].present()) {
          ESPALIER_KERNEL_RETURN_IF_ERROR(
              CopyFromWhole(args.inputs[0], axis, start, args.outputs[i], args.stream));
        }
        start += sizes[i];
      }
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
