#include <cmath>

#include "ops/kernel/kernel.h"

namespace espalier {

void RegisterClipScaleCpu(KernelRegistry& registry) {
  registry.Add("clip_scale", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([max_norm = spec.attributes.Float("max_norm")](const KernelArgs& args) {
      double sum = 0;
      for (const TensorView& input : args.inputs) sum += *input.as<float>();
      const double norm = std::sqrt(sum);
      double scale = max_norm / (norm + 1e-6);
      if (scale > 1) scale = 1;  // NaN stays: it must reach the parameters' loss, not be hidden
      if (args.outputs[0].present()) *args.outputs[0].as<float>() = static_cast<float>(scale);
      if (args.outputs[1].present()) *args.outputs[1].as<float>() = static_cast<float>(norm);
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
