#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/loss_scale.h"

namespace espalier {
namespace cuda_loss_scale {

__global__ void ScaleKernel(LossScaling scaling, const LossScaleState* state, float* scale) {
  *scale = scaling.ScaleOf(*state);
}

// One thread. Outputs may be null.
__global__ void UnscaleKernel(LossScaling scaling, const float* squares, LossScaleState* state,
                              const float* hyper, float* factor, float* norm, float* next_hyper) {
  const LossScaling::Result result = scaling.Finish(*squares, state);
  if (factor != nullptr) *factor = result.factor;
  if (norm != nullptr) *norm = result.norm;
  if (next_hyper != nullptr) {
    next_hyper[0] = hyper[0];
    next_hyper[1] = result.step;
  }
}

}  // namespace cuda_loss_scale

void RegisterLossScaleCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_loss_scale;
  registry.Add("loss_scale", [](const KernelSpec& spec, std::string*) {
    const LossScaling scaling{static_cast<float>(spec.attributes.Float("initial")), 0, 0};
    return MakeKernel([scaling](const KernelArgs& args) {
      ScaleKernel<<<1, 1, 0, StreamOf(args)>>>(scaling, args.inputs[0].as<LossScaleState>(),
                                               args.outputs[0].as<float>());
      return LaunchStatus("loss_scale");
    });
  });
  registry.Add("unscale_gradients", [](const KernelSpec& spec, std::string*) {
    const LossScaling scaling{static_cast<float>(spec.attributes.Float("initial")),
                              static_cast<float>(spec.attributes.Int("growth_interval")),
                              static_cast<float>(spec.attributes.Float("max_norm"))};
    return MakeKernel([scaling](const KernelArgs& args) {
      const auto output = [&](size_t i) {
        return Has(args.outputs, i) ? args.outputs[i].as<float>() : nullptr;
      };
      UnscaleKernel<<<1, 1, 0, StreamOf(args)>>>(
          scaling, args.inputs[0].as<float>(), args.inputs[1].as<LossScaleState>(),
          args.inputs[2].as<float>(), output(0), output(1), output(2));
      return LaunchStatus("unscale_gradients");
    });
  });
}

}  // namespace espalier
