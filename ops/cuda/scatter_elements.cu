#include "ops/cuda/axis_slices.h"
#include "ops/cuda/scatter.cuh"

namespace espalier {

void RegisterScatterElementsCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add(
      "scatter_elements",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        const TensorSpec& x = spec.inputs[0];
        const auto sort =
            StableIndexSort::Make(spec.inputs[1].num_elements(), x.num_elements(), refusal);
        if (sort == nullptr) return nullptr;
        const size_t axis = AxisOf(spec.attributes, x.dims.size());
        const std::string reduction = spec.attributes.String("reduction");
        return MakeKernel(
            [&contexts, axis, sort, reduction](const KernelArgs& args) {
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const ElementTarget target(args.inputs[1], args.inputs[0].dims(), axis,
                                         FaultKind::kScatterElementsIndex, context->faults());
              return Scatter(*sort, target, 1, reduction, args, "scatter_elements");
            },
            sort->workspace_bytes());
      });
  // indices, dy
  registry.Add(
      "scatter_elements_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!HasScatterGradient(spec, refusal)) return nullptr;
        const TensorSpec& dy = spec.inputs[1];
        std::shared_ptr<StableIndexSort> sort;
        if (spec.attributes.String("reduction") == "none") {
          sort = StableIndexSort::Make(spec.inputs[0].num_elements(), dy.num_elements(), refusal);
          if (sort == nullptr) return nullptr;
        }
        const size_t axis = AxisOf(spec.attributes, dy.dims.size());
        return MakeKernel(
            [&contexts, axis, sort](const KernelArgs& args) {
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const ElementTarget target(args.inputs[0], args.inputs[1].dims(), axis,
                                         FaultKind::kScatterElementsIndex, context->faults());
              return ScatterGradient(sort.get(), target, 1, args, "scatter_elements_grad");
            },
            sort == nullptr ? 0 : sort->workspace_bytes());
      });
}

}  // namespace espalier
