#include "ops/cuda/scatter.cuh"

namespace espalier {

void RegisterGatherNdCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add("gather_nd", [&contexts](const KernelSpec& spec, std::string*) {
    const int64_t batch_dims = spec.attributes.Int("batch_dims");
    return MakeKernel([&contexts, batch_dims](const KernelArgs& args) {
      DeviceContext* context = nullptr;
      ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
      const TensorView& x = args.inputs[0];
      const TupleTarget target(args.inputs[1], x.dims(), batch_dims, FaultKind::kGatherNdIndex,
                               context->faults());
      return Gather(target, target.inner, x, args.outputs[0], StreamOf(args), "gather_nd");
    });
  });
  // indices, dy
  registry.Add(
      "gather_nd_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        const TensorSpec& dx = spec.outputs[0];
        if (!TakesFloat(dx.dtype, refusal)) return nullptr;
        const int64_t batch_dims = spec.attributes.Int("batch_dims");
        const TupleTarget shape(spec.inputs[0].dims, dx.dims, batch_dims);
        const auto sort =
            StableIndexSort::Make(shape.batch * shape.tuples, shape.batch * shape.rows, refusal);
        if (sort == nullptr) return nullptr;
        return MakeKernel(
            [&contexts, batch_dims, sort](const KernelArgs& args) {
              const TensorView& dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const TupleTarget target(args.inputs[0], dx.dims(), batch_dims,
                                       FaultKind::kGatherNdIndex, context->faults());
              return GatherGradient(*sort, target, target.inner, args.inputs[1], dx, args,
                                    "gather_nd_grad");
            },
            sort->workspace_bytes());
      });
}

}  // namespace espalier
