#include "ops/cuda/scatter.cuh"

namespace espalier {

void RegisterScatterNdCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add(
      "scatter_nd",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        const TupleTarget shape(spec.inputs[1].dims, spec.inputs[0].dims, 0);
        const auto sort = StableIndexSort::Make(shape.tuples, shape.rows, refusal);
        if (sort == nullptr) return nullptr;
        const std::string reduction = spec.attributes.String("reduction");
        return MakeKernel(
            [&contexts, sort, reduction](const KernelArgs& args) {
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const TupleTarget target(args.inputs[1], args.inputs[0].dims(), 0,
                                       FaultKind::kScatterNdIndex, context->faults());
              return Scatter(*sort, target, target.inner, reduction, args, "scatter_nd");
            },
            sort->workspace_bytes());
      });
  // indices, dy
  registry.Add(
      "scatter_nd_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!HasScatterGradient(spec, refusal)) return nullptr;
        std::shared_ptr<StableIndexSort> sort;
        if (spec.attributes.String("reduction") == "none") {
          const TupleTarget shape(spec.inputs[0].dims, spec.inputs[1].dims, 0);
          sort = StableIndexSort::Make(shape.tuples, shape.rows, refusal);
          if (sort == nullptr) return nullptr;
        }
        return MakeKernel(
            [&contexts, sort](const KernelArgs& args) {
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const TupleTarget target(args.inputs[0], args.inputs[1].dims(), 0,
                                       FaultKind::kScatterNdIndex, context->faults());
              return ScatterGradient(sort.get(), target, target.inner, args, "scatter_nd_grad");
            },
            sort == nullptr ? 0 : sort->workspace_bytes());
      });
}

}  // namespace espalier
