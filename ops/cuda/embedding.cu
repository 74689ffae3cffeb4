// embedding: rows of a table by id; embedding_bag: sums of several rows.
#include <algorithm>

#include "ops/cuda/labels.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/scatter_rows.h"

namespace espalier {
namespace cuda_embedding {

// The position of a shard of the weight's rows in the whole table.
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

// Bags of `length` ids; ids equal to `padding` are skipped.
struct Bags {
  int64_t count, length, padding;
  bool average;

  static Bags Of(const Attributes& a, const Dims& ids) {
    return {RowsOf(ids), ids.back(), a.Int("padding_index", -1), a.String("mode") == "average"};
  }

  // Returns the factor of each row of bag b.
  __device__ float Share(const Integers& ids, int64_t b) const {
    if (!average) return 1.0f;
    int64_t counted = 0;
    for (int64_t i = b * length; i < (b + 1) * length; ++i) counted += ids[i] != padding;
    return counted > 0 ? 1.0f / static_cast<float>(counted) : 0.0f;
  }
};

// One block per bag.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BagKernel(Bags bags, Integers ids, const T* weight, T* y, Table table, int64_t width,
              FaultSink faults) {
  const int64_t bag = blockIdx.x, first = bag * bags.length;
  for (int64_t i = threadIdx.x; i < bags.length; i += kThreads) {
    const int64_t id = ids[first + i];
    if (id < 0 || id >= table.vocabulary) {
      faults.Report(FaultKind::kEmbeddingId, first + i, id, table.vocabulary);
    }
  }
  const float share = bags.Share(ids, bag);
  for (int64_t j = threadIdx.x; j < width; j += kThreads) {
    float sum = 0;
    for (int64_t i = 0; i < bags.length; ++i) {
      const int64_t id = ids[first + i], row = id - table.offset;
      if (id != bags.padding && row >= 0 && row < table.rows) {
        sum += ToFloat(weight[row * width + j]);
      }
    }
    y[bag * width + j] = FromFloat<T>(sum * share);
  }
}

KernelStatus BagForward(DeviceContexts& contexts, const Attributes& a, const KernelArgs& args) {
  const TensorView &ids = args.inputs[0], &weight = args.inputs[1], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const Bags bags = Bags::Of(a, ids.dims());
  return DispatchFloat(weight.dtype(), "embedding_bag", [&](auto type) {
    using T = typename decltype(type)::T;
    BagKernel<T><<<static_cast<unsigned>(bags.count), kThreads, 0, StreamOf(args)>>>(
        bags, Integers::Of(ids), weight.as<T>(), y.as<T>(), Table::Of(weight.spec),
        weight.dims()[1], context->faults());
    return LaunchStatus("embedding_bag");
  });
}

// weights[i]: the share of id i.
struct SpreadShares {
  Bags bags;
  Integers ids;
  float* weights;
  __device__ void operator()(int64_t b) const {
    const float share = bags.Share(ids, b);
    for (int64_t i = b * bags.length; i < (b + 1) * bags.length; ++i) weights[i] = share;
  }
};

ScatterProblem Scattered(const TensorView& ids, const TensorView& dweight) {
  const Table table = Table::Of(dweight.spec);
  ScatterProblem problem;
  problem.indices = Integers::Of(ids);
  problem.count = ids.num_elements();
  problem.rows = table.rows;
  problem.inner = dweight.dims()[1];
  problem.offset = table.offset;
  problem.limit = table.vocabulary;
  problem.fault = FaultKind::kEmbeddingId;
  return problem;
}

// ids, dy -> dweight. The shares lie behind the scatter's workspace.
KernelStatus BagBackward(DeviceContexts& contexts, const Attributes& a, const RowScatter& scatter,
                         const KernelArgs& args) {
  const TensorView &ids = args.inputs[0], &dweight = args.outputs[0];
  if (!dweight.present()) return KernelStatus::Ok();
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const Bags bags = Bags::Of(a, ids.dims());
  ScatterProblem problem = Scattered(ids, dweight);
  problem.repeat = std::max<int64_t>(1, bags.length);
  problem.skips = bags.padding >= 0;
  problem.skipped = bags.padding;
  if (bags.average) {
    float* weights = WorkspaceAt<float>(args, scatter.workspace_bytes());
    problem.weights = weights;
    ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(bags.count,
                                            SpreadShares{bags, Integers::Of(ids), weights},
                                            StreamOf(args), "embedding_bag_grad"));
  }
  return scatter.Run(problem, args.inputs[1], dweight, context->faults(), args);
}

}  // namespace cuda_embedding

void RegisterEmbeddingCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_embedding;
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
              const ScatterProblem problem = Scattered(ids, dweight);
              return scatter->Run(problem, args.inputs[1], dweight, context->faults(), args);
            },
            scatter->workspace_bytes());
      });
  registry.Add(
      "embedding_bag",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[1].dtype, refusal)) return nullptr;
        return MakeKernel([&contexts, a = spec.attributes](const KernelArgs& args) {
          return BagForward(contexts, a, args);
        });
      });
  registry.Add(
      "embedding_bag_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[1].dtype, refusal)) return nullptr;
        const int64_t ids = spec.inputs[0].num_elements();
        const std::shared_ptr<RowScatter> scatter =
            RowScatter::Make(ids, spec.outputs[0].dims[0], refusal);
        if (scatter == nullptr) return nullptr;
        return MakeKernel(
            [&contexts, scatter, a = spec.attributes](const KernelArgs& args) {
              return BagBackward(contexts, a, *scatter, args);
            },
            scatter->workspace_bytes() + static_cast<size_t>(ids) * sizeof(float));
      });
}

}  // namespace espalier
