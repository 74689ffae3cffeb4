#include "ops/cuda/axis_slices.h"

namespace espalier {

void RegisterSplitCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("split", [](const KernelSpec& spec, std::string*) {
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
  // An output that the graph does not use has no gradient: it counts as zeros.
  registry.Add("split_grad", [](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.outputs[0].dims.size());
    return MakeKernel([axis, sizes = spec.attributes.Ints("sizes")](const KernelArgs& args) {
      const TensorView& dx = args.outputs[0];
      bool all = true;
      for (const TensorView& dy : args.inputs) all = all && dy.present();
      if (!all) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(FillOnStream(dx.data, dx.dtype(), dx.num_elements(), 0,
                                                     static_cast<cudaStream_t>(args.stream)));
      }
      int64_t start = 0;
      for (size_t i = 0; i < args.inputs.size(); ++i) {
        if (args.inputs[i].present()) {
          ESPALIER_KERNEL_RETURN_IF_ERROR(
              CopyIntoWhole(args.inputs[i], dx, axis, start, args.stream));
        }
        start += sizes[i];
      }
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
