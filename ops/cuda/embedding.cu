#include "ops/cuda/labels.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/register.h"
#include "ops/cuda/scatter_rows.h"

namespace espalier {
namespace {

// Where a shard of the weight's rows lies in the whole table.
struct Table {
  int64_t offset, rows, vocabulary;

  static Table Of(const TensorSpec& weight) {
    return {weight.offset.empty() ? 0 : weight.offset[0], weight.dims[0],
            weight.global.empty() ? weight.dims[0] : weight.global[0]};
  }
};

// One block per id. A shard of the table gives zeros for ids that it does not hold.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LookupKernel(Integers ids, const T* weight, T* y, Table table, int64_t width,
                 FaultSink faults) {
  const int64_t id = ids[blockIdx.x];
  if ((id < 0 || id >= table.vocabulary) && threadIdx.x == 0) {
    faults.Report(FaultKind::kEmbeddingId, blockIdx.x, id, table.vocabulary);
  }
  const int64_t row = id - table.offset;
  const bool here = row >= 0 && row < table.rows;
  y += blockIdx.x * width;
  for (int64_t j = threadIdx.x; j < width; j += kThreads) {
    y[j] = here ? weight[row * width + j] : FromFloat<T>(0.0f);
  }
}

KernelStatus Forward(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &ids = args.inputs[0], &weight = args.inputs[1], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  return DispatchFloat(weight.dtype(), "embedding", [&](auto type) {
    using T = typename decltype(type)::T;
    LookupKernel<T><<<static_cast<unsigned>(ids.num_elements()), kThreads, 0, StreamOf(args)>>>(
        Integers::Of(ids), weight.as<T>(), y.as<T>(), Table::Of(weight.spec), weight.dims()[1],
        context->faults());
    return LaunchStatus("embedding");
  });
}

}  // namespace

void RegisterEmbeddingCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add(
      "embedding",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[1].dtype, refusal)) return nullptr;
        return MakeKernel([&contexts](const KernelArgs& args) { return Forward(contexts, args); });
      });
  // ids, dy -> dweight
  registry.Add(
      "embedding_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[1].dtype, refusal)) return nullptr;
        const std::shared_ptr<RowScatter> scatter =
            RowScatter::Make(spec.inputs[0].num_elements(), spec.outputs[0].dims[0], refusal);
        if (scatter == nullptr) return nullptr;
        return MakeKernel(
            [&contexts, scatter](const KernelArgs& args) {
              const TensorView &ids = args.inputs[0], &dweight = args.outputs[0];
              if (!dweight.present()) return KernelStatus::Ok();
              DeviceContext* context = nullptr;
              ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
              const Table table = Table::Of(dweight.spec);
              ScatterProblem problem;
              problem.indices = Integers::Of(ids);
              problem.count = ids.num_elements();
              problem.rows = table.rows;
              problem.inner = dweight.dims()[1];
              problem.offset = table.offset;
              problem.limit = table.vocabulary;
              problem.fault = FaultKind::kEmbeddingId;
              return scatter->Run(problem, args.inputs[1], dweight, context->faults(), args);
            },
            scatter->workspace_bytes());
      });
}

}  // namespace espalier
