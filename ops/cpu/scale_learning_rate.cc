#include "ops/kernel/kernel.h"

namespace espalier {

void RegisterScaleLearningRateCpu(KernelRegistry& registry) {
  registry.Add("scale_learning_rate", [](const KernelSpec& spec, std::string*) {
    const float factor = static_cast<float>(spec.attributes.Float("factor"));
    return MakeKernel([factor](const KernelArgs& args) {
      const float* from = args.inputs[0].as<float>();
      float* to = args.outputs[0].as<float>();
      to[0] = factor * from[0];
      to[1] = from[1];
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
