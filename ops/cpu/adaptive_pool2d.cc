#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/pool.h"

namespace espalier {
namespace {

Pooling Describe(const Attributes& a) {
  return {a.String("kind") == "max" ? PoolKind::kMax : PoolKind::kAverage};
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([pooling = Describe(spec.attributes)](const KernelArgs& args) {
    const TensorView &x = args.inputs[0], &y = args.outputs[0];
    PoolForward(pooling, AdaptiveWindows(x.dims(), y.dims()), x.dims()[0] * x.dims()[1],
                x.as<float>(), y.as<float>());
    return KernelStatus::Ok();
  });
}

// x, dy -> dx
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([pooling = Describe(spec.attributes)](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const TensorView &x = args.inputs[0], &dy = args.inputs[1];
    PoolBackward(pooling, AdaptiveWindows(x.dims(), dy.dims()), x.dims()[0] * x.dims()[1],
                 x.as<float>(), nullptr, dy.as<float>(), args.outputs[0].as<float>());
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterAdaptivePool2dCpu(KernelRegistry& registry) {
  registry.Add("adaptive_pool2d", ViaF32(MakeForward));
  registry.Add("adaptive_pool2d_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
