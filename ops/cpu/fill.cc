#include <algorithm>

#include "ops/cpu/dtype/element.h"
#include "ops/kernel/kernel.h"

namespace espalier {

void RegisterFillCpu(KernelRegistry& registry) {
  registry.Add("fill", [](const KernelSpec& spec, std::string*) {
    const double value = spec.attributes.Float("value");
    return MakeKernel([value](const KernelArgs& args) {
      const TensorView& y = args.outputs[0];
      WithElement(y.dtype(), [&](auto element) {
        using Element = decltype(element);
        auto* data = y.as<typename Element::Storage>();
        std::fill(data, data + y.num_elements(), Element::From(value));
      });
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
