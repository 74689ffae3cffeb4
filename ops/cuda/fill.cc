#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"

namespace espalier {

void RegisterFillCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("fill", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([value = spec.attributes.Float("value")](const KernelArgs& args) {
      const TensorView& y = args.outputs[0];
      return FillOnStream(y.data, y.dtype(), y.num_elements(), value,
                          static_cast<cudaStream_t>(args.stream));
    });
  });
}

}  // namespace espalier
