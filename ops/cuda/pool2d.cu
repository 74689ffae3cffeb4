#include "ops/cuda/pool.cuh"
#include "ops/kernel/shard_padding.h"

namespace espalier {
namespace cuda_pool2d {

PoolKind KindOf(const Attributes& a) {
  const std::string kind = a.String("kind");
  return kind == "max" ? PoolKind::kMax : kind == "lp" ? PoolKind::kLp : PoolKind::kAverage;
}

Attributes PartOf(const KernelSpec& spec, const TensorSpec& y) {
  return ShardAttributes(spec.attributes, spec.inputs[0], y, spec.attributes.Ints("kernel"));
}

}  // namespace cuda_pool2d

void RegisterPool2dCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_pool2d;
  registry.Add(
      "pool2d", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        return MakeKernel([a = PartOf(spec, spec.outputs[0])](const KernelArgs& args) {
          return RunPool(args, Windows::Sliding(a, args.inputs[0].dims(), args.outputs[0].dims()),
                         KindOf(a), static_cast<float>(a.Int("p", 2)), "pool2d");
        });
      });
  // x, y?, dy -> dx
  registry.Add("pool2d_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel(
                     [a = PartOf(spec, spec.inputs[2])](const KernelArgs& args) {
                       return RunPoolGradient(
                           args, Windows::Sliding(a, args.inputs[0].dims(), args.inputs[2].dims()),
                           KindOf(a), static_cast<float>(a.Int("p", 2)), &args.inputs[1],
                           args.inputs[2], "pool2d_grad");
                     },
                     PoolGradientBytes(KindOf(spec.attributes), spec.inputs[2]));
               });
}

}  // namespace espalier
