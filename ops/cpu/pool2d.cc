#include "ops/cpu/convert.h"
#include "ops/cpu/pool.h"
#include "ops/kernel/part_pads.h"

namespace espalier {
namespace {

Pooling Describe(const Attributes& a) {
  const std::string kind = a.String("kind");
  return {kind == "max"  ? PoolKind::kMax
          : kind == "lp" ? PoolKind::kLp
                         : PoolKind::kAverage,
          a.Int("p", 2)};
}

Attributes PartOf(const KernelSpec& spec, const TensorSpec& y) {
  return AttributesOfPart(spec.attributes, spec.inputs[0], y, spec.attributes.Ints("kernel"));
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([a = PartOf(spec, spec.outputs[0])](const KernelArgs& args) {
    const TensorView &x = args.inputs[0], &y = args.outputs[0];
    PoolForward(Describe(a), SlidingWindows(a, x.dims(), y.dims()), x.dims()[0] * x.dims()[1],
                x.as<float>(), y.as<float>());
    return KernelStatus::Ok();
  });
}

// x, y?, dy -> dx
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([a = PartOf(spec, spec.inputs[2])](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const TensorView &x = args.inputs[0], &dy = args.inputs[2];
    PoolBackward(Describe(a), SlidingWindows(a, x.dims(), dy.dims()), x.dims()[0] * x.dims()[1],
                 x.as<float>(), args.inputs[1].as<float>(), dy.as<float>(),
                 args.outputs[0].as<float>());
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterPool2dCpu(KernelRegistry& registry) {
  registry.Add("pool2d", ViaF32(MakeForward));
  registry.Add("pool2d_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
