#include "ops/cuda/axis_slices.h"
#include "ops/cuda/scatter.cuh"

namespace espalier {

void RegisterGatherElementsCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add("gather_elements", [&contexts](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.inputs[0].dims.size());
    return MakeKernel([&contexts, axis](const KernelArgs& args) {
      DeviceContext* context = nullptr;
      ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
      const TensorView& x = args.inputs[0];
      const ElementTarget target(args.inputs[1], x.dims(), axis, FaultKind::kGatherElementsIndex,
                                 context->faults());
      return Gather(target, 1, x, args.outputs[0], StreamOf(args), "gather_elements");
    });
  });
  // indices, dy
  registry.Add(
      "gather_elements_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        const TensorSpec& dx = spec.outputs[0];
        if (!TakesFloat(dx.dtype, refusal)) return nullptr;
        const auto sort =
            StableIndexSort::Make(spec.inputs[0].num_elements(), dx.num_elements(), refusal);
        if (sort == nullptr) return nullptr;
        const size_t axis = AxisOf(spec.attributes, dx.dims.size());
        return MakeKernel(
            [&contexts, axis, sort](const KernelArgs& args) {
              const TensorView& dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const ElementTarget target(args.inputs[0], dx.dims(), axis,
                                         FaultKind::kGatherElementsIndex, context->faults());
              return GatherGradient(*sort, target, 1, args.inputs[1], dx, args,
                                    "gather_elements_grad");
            },
            sort->workspace_bytes());
      });
}

}  // namespace espalier
