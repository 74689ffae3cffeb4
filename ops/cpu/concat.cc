#include "ops/cpu/layout/axis_slices.h"

namespace espalier {

void RegisterConcatCpu(KernelRegistry& registry) {
  registry.Add("concat", [](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.outputs[0].dims.size());
    return MakeKernel([axis](const KernelArgs& args) {
      int64_t start = 0;
      for (const TensorView& x : args.inputs) {
        CopyIntoWhole(x, args.outputs[0], axis, start);
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
        const TensorView& dx = args.outputs[i];
        if (dx.present()) CopyFromWhole(args.inputs[0], axis, start, dx);
        start += sizes[i];
      }
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
