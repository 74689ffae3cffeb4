#include "ops/cuda/axis_slices.h"
#include "ops/cuda/labels.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/scatter_rows.h"

namespace espalier {
namespace cuda_gather {

// x as [outer, rows, inner]: indices choose rows.
struct Lookup {
  int64_t outer = 1, rows = 1, inner = 1;

  Lookup(const Dims& x, size_t axis) : rows(x[axis]) {
    for (size_t d = 0; d < axis; ++d) outer *= x[d];
    for (size_t d = axis + 1; d < x.size(); ++d) inner *= x[d];
  }
};

// T has the size of an element.
template <typename T>
struct GatherElement {
  const T* x;
  T* y;
  Integers indices;
  int64_t count, rows, inner;
  FaultSink faults;
  __device__ void operator()(int64_t i) const {
    const int64_t column = i % inner, j = i / inner % count, outer = i / (inner * count);
    int64_t row = indices[j];
    if (row < -rows || row >= rows) {
      faults.Report(FaultKind::kGatherIndex, j, row, rows);
      row = 0;
    }
    if (row < 0) row += rows;
    y[i] = x[(outer * rows + row) * inner + column];
  }
};

template <typename T>
KernelStatus Gather(const KernelArgs& args, size_t axis, const FaultSink& faults) {
  const TensorView &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  const Lookup lookup(x.dims(), axis);
  if (lookup.rows == 0 && y.num_elements() > 0) {
    return KernelStatus::Error("gather: 'x' has no elements along the axis to choose from");
  }
  return ForEach(y.num_elements(),
                 GatherElement<T>{x.as<T>(), y.as<T>(), Integers::Of(indices),
                                  indices.num_elements(), lookup.rows, lookup.inner, faults},
                 StreamOf(args), "gather");
}

KernelStatus Forward(DeviceContexts& contexts, const KernelArgs& args, size_t axis) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  switch (SizeOf(args.inputs[0].dtype())) {
    case 1:
      return Gather<uint8_t>(args, axis, context->faults());
    case 2:
      return Gather<uint16_t>(args, axis, context->faults());
    case 4:
      return Gather<uint32_t>(args, axis, context->faults());
    default:
      return Gather<uint64_t>(args, axis, context->faults());
  }
}

}  // namespace cuda_gather

void RegisterGatherCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_gather;
  registry.Add("gather", [&contexts](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.inputs[0].dims.size());
    return MakeKernel(
        [&contexts, axis](const KernelArgs& args) { return Forward(contexts, args, axis); });
  });
  // indices, dy -> dx
  registry.Add(
      "gather_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
        const size_t axis = AxisOf(spec.attributes, spec.outputs[0].dims.size());
        const std::shared_ptr<RowScatter> scatter =
            RowScatter::Make(spec.inputs[0].num_elements(), spec.outputs[0].dims[axis], refusal);
        if (scatter == nullptr) return nullptr;
        return MakeKernel(
            [&contexts, axis, scatter](const KernelArgs& args) {
              const TensorView& dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const Lookup lookup(dx.dims(), axis);
              ScatterProblem problem;
              problem.indices = Integers::Of(args.inputs[0]);
              problem.count = args.inputs[0].num_elements();
              problem.outer = lookup.outer;
              problem.rows = problem.limit = lookup.rows;
              problem.inner = lookup.inner;
              problem.from_end = true;
              return scatter->Run(problem, args.inputs[1], dx, context->faults(), args);
            },
            scatter->workspace_bytes());
      });
}

}  // namespace espalier
