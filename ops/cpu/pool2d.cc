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

// Height and width are those of the spec at every run.
Windows WindowsOf(const KernelSpec& spec, const TensorSpec& y) {
  const TensorSpec& x = spec.inputs[0];
  return SlidingWindows(AttributesOfPart(spec.attributes, x, y, spec.attributes.Ints("kernel")),
                        x.dims, y.dims);
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([pooling = Describe(spec.attributes),
                     windows = WindowsOf(spec, spec.outputs[0])](const KernelArgs& args) {
    const TensorView& x = args.inputs[0];
    PoolForward(pooling, windows, x.dims()[0] * x.dims()[1], x.as<float>(),
                args.outputs[0].as<float>());
    return KernelStatus::Ok();
  });
}

// x, y?, dy -> dx
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([pooling = Describe(spec.attributes),
                     windows = WindowsOf(spec, spec.inputs[2])](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const TensorView& x = args.inputs[0];
    PoolBackward(pooling, windows, x.dims()[0] * x.dims()[1], x.as<float>(),
                 args.inputs[1].as<float>(), args.inputs[2].as<float>(),
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
