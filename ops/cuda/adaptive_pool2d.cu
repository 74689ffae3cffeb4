#include "ops/cuda/pool.cuh"

namespace espalier {
namespace cuda_adaptive_pool2d {

PoolKind KindOf(const KernelSpec& spec) {
  return spec.attributes.String("kind") == "max" ? PoolKind::kMax : PoolKind::kAverage;
}

}  // namespace cuda_adaptive_pool2d

void RegisterAdaptivePool2dCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_adaptive_pool2d;
  registry.Add("adaptive_pool2d",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([kind = KindOf(spec)](const KernelArgs& args) {
                   return RunPool(args,
                                  Windows::Adaptive(args.inputs[0].dims(), args.outputs[0].dims()),
                                  kind, 1, "adaptive_pool2d");
                 });
               });
  // x, dy -> dx
  registry.Add("adaptive_pool2d_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel(
                     [kind = KindOf(spec)](const KernelArgs& args) {
                       return RunPoolGradient(
                           args, Windows::Adaptive(args.inputs[0].dims(), args.inputs[1].dims()),
                           kind, 1, nullptr, args.inputs[1], "adaptive_pool2d_grad");
                     },
                     PoolGradientBytes(KindOf(spec), spec.inputs[1]));
               });
}

}  // namespace espalier
