#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/slice_copy.h"

namespace espalier {

void RegisterSliceCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("slice", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (y.num_elements() == 0) return KernelStatus::Ok();
      return CopyFromWindow(SliceWindow(attributes, x.dims(), DenseStrides(x.dims())), x, y,
                            args.stream, "slice");
    });
  });
  registry.Add("slice_grad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
      if (!dx.present()) return KernelStatus::Ok();
      ESPALIER_KERNEL_RETURN_IF_ERROR(FillOnStream(dx.data, dx.dtype(), dx.num_elements(), 0,
                                                   static_cast<cudaStream_t>(args.stream)));
      if (dy.num_elements() == 0) return KernelStatus::Ok();
      return CopyIntoWindow(SliceWindow(attributes, dx.dims(), DenseStrides(dx.dims())), dy, dx,
                            args.stream, "slice_grad");
    });
  });
}

}  // namespace espalier
