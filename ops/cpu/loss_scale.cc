#include "ops/kernel/loss_scale.h"

#include "ops/kernel/kernel.h"

namespace espalier {

void RegisterLossScaleCpu(KernelRegistry& registry) {
  registry.Add("loss_scale", [](const KernelSpec& spec, std::string*) {
    const LossScaling scaling{static_cast<float>(spec.attributes.Float("initial")), 0, 0};
    return MakeKernel([scaling](const KernelArgs& args) {
      *args.outputs[0].as<float>() = scaling.ScaleOf(*args.inputs[0].as<LossScaleState>());
      return KernelStatus::Ok();
    });
  });
  registry.Add("unscale_gradients", [](const KernelSpec& spec, std::string*) {
    const LossScaling scaling{static_cast<float>(spec.attributes.Float("initial")),
                              static_cast<float>(spec.attributes.Int("growth_interval")),
                              static_cast<float>(spec.attributes.Float("max_norm"))};
    return MakeKernel([scaling](const KernelArgs& args) {
      const LossScaling::Result result =
          scaling.Finish(*args.inputs[0].as<float>(), args.inputs[1].as<LossScaleState>());
      const auto store = [&](size_t output, float value) {
        if (args.outputs[output].present()) *args.outputs[output].as<float>() = value;
      };
      store(0, result.factor);
      store(1, result.norm);
      store(2, args.inputs[2].as<float>()[0]);
      if (args.outputs[2].present()) args.outputs[2].as<float>()[1] = result.step;
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
