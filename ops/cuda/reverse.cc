#include "ops/cuda/slice_copy.h"

namespace espalier {

// Its own inverse, and so its gradient.
void RegisterReverseCuda(KernelRegistry& registry, DeviceContexts&) {
  const KernelFactory factory = [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (!y.present() || y.num_elements() == 0) return KernelStatus::Ok();
      return CopyFromWindow(ReverseWindow(attributes, x.dims(), DenseStrides(x.dims())), x, y,
                            args.stream, "reverse");
    });
  };
  registry.Add("reverse", factory);
  registry.Add("reverse_grad", factory);
}

}  // namespace espalier
