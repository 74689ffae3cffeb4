#include "ops/cpu/layout/slice_copy.h"

namespace espalier {

// Its own inverse, and so its gradient.
void RegisterReverseCpu(KernelRegistry& registry) {
  const KernelFactory factory = [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      CopyFromWindow(ReverseWindow(attributes, x.dims(), DenseStrides(x.dims())), x, y);
      return KernelStatus::Ok();
    });
  };
  registry.Add("reverse", factory);
  registry.Add("reverse_grad", factory);
}

}  // namespace espalier
