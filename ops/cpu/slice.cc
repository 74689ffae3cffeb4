#include <cstring>

#include "ops/cpu/layout/slice_copy.h"

namespace espalier {

void RegisterSliceCpu(KernelRegistry& registry) {
  registry.Add("slice", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (y.num_elements() == 0) return KernelStatus::Ok();
      CopyFromWindow(SliceWindow(attributes, x.dims(), DenseStrides(x.dims())), x, y);
      return KernelStatus::Ok();
    });
  });
  registry.Add("slice_grad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
      std::memset(dx.data, 0, dx.spec.bytes());
      if (dy.num_elements() == 0) return KernelStatus::Ok();
      CopyIntoWindow(SliceWindow(attributes, dx.dims(), DenseStrides(dx.dims())), dy, dx);
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
