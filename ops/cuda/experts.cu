// group_by, aggregate, aggregate_spec and load_balance_loss. Every choice finds its row of its
// expert first; all else is one thread or block per element, in one order.
#include <algorithm>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_experts {

// As many experts as fit into the parameters of a launch.
constexpr int64_t kMaxExperts = 256;

struct ExpertRows {
  void* data[kMaxExperts];

  static ExpertRows Of(std::span<const TensorView> views) {
    ExpertRows rows = {};
    for (size_t e = 0; e < views.size(); ++e) rows.data[e] = views[e].data;
    return rows;
  }
  // Null if the output of expert e is absent.
  template <typename T>
  __device__ T* At(int expert) const {
    return static_cast<T*>(data[expert]);
  }
};

// The routing of choices to experts, in the workspace.
struct Routing {
  const int32_t* assign;
  int64_t choices, samples, k;
  int64_t experts;
  int64_t capacity;
  int64_t first;       // choice of the first sample of this part
  int64_t* positions;  // of each choice: its row of the expert, -1 if dropped
  int64_t* counts;     // of each expert, dropped ones too

  static size_t Bytes(int64_t choices, int64_t experts) {
    return static_cast<size_t>(choices + experts) * sizeof(int64_t);
  }
  __device__ int Expert(int64_t choice) const { return assign[choice]; }
  __device__ bool Kept(int64_t choice) const { return positions[choice] >= 0; }
};

// One block per expert; each thread counts, then places, a run of consecutive choices.
__global__ void __launch_bounds__(kThreads) RouteKernel(Routing routing, FaultSink faults) {
  __shared__ int64_t before[kThreads];
  const int expert = static_cast<int>(blockIdx.x);
  const int64_t begin = routing.choices * threadIdx.x / kThreads;
  const int64_t end = routing.choices * (threadIdx.x + 1) / kThreads;
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t found = routing.assign[i];
    count += found == expert;
    if (expert == 0 && (found < 0 || found >= routing.experts)) {
      faults.Report(FaultKind::kExpert, i, found, routing.experts);
      routing.positions[i] = -1;
    }
  }
  before[threadIdx.x] = count;
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t total = 0;
    for (int t = 0; t < kThreads; ++t) {
      const int64_t own = before[t];
      before[t] = total;
      total += own;
    }
    routing.counts[expert] = total;
  }
  __syncthreads();
  int64_t at = before[threadIdx.x];
  for (int64_t i = begin; i < end; ++i) {
    if (routing.assign[i] != expert) continue;
    routing.positions[i] = at < routing.capacity ? at : -1;
    ++at;
  }
}

KernelStatus Route(DeviceContexts& contexts, const KernelArgs& args, const TensorView& assign,
                   int64_t experts, int64_t capacity, const TensorSpec& split, const char* op,
                   Routing* routing) {
  routing->assign = assign.as<int32_t>();
  routing->choices = assign.num_elements();
  routing->samples = assign.dims()[0];
  routing->k = assign.dims()[1];
  routing->experts = experts;
  routing->capacity = capacity;
  routing->first = (split.offset.empty() ? 0 : split.offset[0]) * routing->k;
  routing->positions = WorkspaceAt<int64_t>(args, 0);
  routing->counts = routing->positions + routing->choices;
  if (experts == 0) return KernelStatus::Ok();
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  RouteKernel<<<static_cast<unsigned>(experts), kThreads, 0, StreamOf(args)>>>(*routing,
                                                                               context->faults());
  return LaunchStatus(op);
}

// Returns the rows of the first expert that is present.
int64_t CapacityOf(std::span<const TensorView> experts) {
  for (const TensorView& view : experts) {
    if (view.present()) return view.dims()[0];
  }
  return 0;
}

KernelStatus Zero(std::span<const TensorView> views, const KernelArgs& args, const char* op) {
  for (const TensorView& view : views) {
    if (!view.present() || view.num_elements() == 0) continue;
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(view.data, 0, static_cast<size_t>(view.spec.bytes()), StreamOf(args)), op));
  }
  return KernelStatus::Ok();
}

// Elements of [choices of this part, width].
template <typename T>
struct ScatterRows {
  Routing routing;
  const T* x;
  ExpertRows experts;
  int64_t width;
  __device__ void operator()(int64_t i) const {
    const int64_t choice = i / width, j = i % width, at = routing.first + choice;
    if (!routing.Kept(at)) return;
    T* const rows = experts.At<T>(routing.Expert(at));
    if (rows != nullptr) {
      rows[routing.positions[at] * width + j] = x[choice / routing.k * width + j];
    }
  }
};

// Elements of [samples (kByChoice: choices) of this part, width]: the sum of weight * row.
template <typename T, bool kByChoice>
struct GatherRows {
  Routing routing;
  const T* weights;  // null: 1
  ExpertRows experts;
  T* y;
  int64_t width;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / width, j = i % width, k = kByChoice ? 1 : routing.k;
    float sum = 0;
    for (int64_t choice = row * k; choice < (row + 1) * k; ++choice) {
      const int64_t at = routing.first + choice;
      if (!routing.Kept(at)) continue;
      const T* const rows = experts.At<T>(routing.Expert(at));
      if (rows == nullptr) continue;
      const float weight = weights != nullptr ? ToFloat(weights[choice]) : 1.0f;
      sum += weight * ToFloat(rows[routing.positions[at] * width + j]);
    }
    y[i] = FromFloat<T>(sum);
  }
};

// One block per choice of this part: the gradients of its gate value (unless null) and of its row.
template <typename T, bool kByChoice>
__global__ void __launch_bounds__(kThreads)
    ChoiceGradient(Routing routing, const T* gates, const T* dy, ExpertRows experts,
                   ExpertRows dexperts, T* dgates, int64_t width) {
  const int64_t choice = blockIdx.x, at = routing.first + choice;
  const bool kept = routing.Kept(at);
  const int expert = kept ? routing.Expert(at) : 0;
  const int64_t start = kept ? routing.positions[at] * width : 0;
  const T* const row = dy + (kByChoice ? choice : choice / routing.k) * width;
  T* const drow = kept ? dexperts.At<T>(expert) : nullptr;
  const float gate = ToFloat(gates[choice]);
  float dot = 0;
  for (int64_t j = threadIdx.x; kept && j < width; j += kThreads) {
    const float d = ToFloat(row[j]);
    if (dgates != nullptr) dot += d * ToFloat(experts.At<const T>(expert)[start + j]);
    if (drow != nullptr) drow[start + j] = FromFloat<T>(gate * d);
  }
  if (dgates == nullptr) return;
  dot = BlockReduce<SumOp>(dot);
  if (threadIdx.x == 0) dgates[choice] = FromFloat<T>(dot);
}

// The gradient of scale * load_balance_loss for any sample and one expert.
struct BalanceGradient {
  Routing routing;
  double samples;
  double scale;
  const float* factor;  // times this, on the device; may be null

  __device__ float Of(int64_t expert) const {
    if (routing.choices == 0) return 0.0f;
    const double one = scale * (factor != nullptr ? *factor : 1.0f);
    return static_cast<float>(one * static_cast<double>(routing.counts[expert]) *
                              static_cast<double>(routing.experts) /
                              static_cast<double>(routing.choices) / samples);
  }
};

template <typename T>
struct FillBalance {
  BalanceGradient gradient;
  T* out;
  __device__ void operator()(int64_t i) const {
    out[i] = FromFloat<T>(gradient.Of(i % gradient.routing.experts));
  }
};

template <typename T>
struct WeightedGate {
  BalanceGradient gradient;
  const T* gates;
  __device__ float operator()(int64_t i) const {
    return gradient.Of(i % gradient.routing.experts) * ToFloat(gates[i]);
  }
};

KernelStatus GroupBy(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &assign = args.inputs[1];
  Routing routing;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Route(contexts, args, assign,
                                        static_cast<int64_t>(args.outputs.size()),
                                        CapacityOf(args.outputs), x.spec, "group_by", &routing));
  ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(args.outputs, args, "group_by"));
  const int64_t width = x.dims()[1];
  return DispatchFloat(x.dtype(), "group_by", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(x.num_elements() * routing.k,
                   ScatterRows<T>{routing, x.as<T>(), ExpertRows::Of(args.outputs), width},
                   StreamOf(args), "group_by");
  });
}

KernelStatus GroupByGradient(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &assign = args.inputs[0], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  const std::span<const TensorView> grads = args.inputs.subspan(1);
  Routing routing;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Route(contexts, args, assign, static_cast<int64_t>(grads.size()),
                                        CapacityOf(grads), dx.spec, "group_by_grad", &routing));
  return DispatchFloat(dx.dtype(), "group_by_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        dx.num_elements(),
        GatherRows<T, false>{routing, nullptr, ExpertRows::Of(grads), dx.as<T>(), dx.dims()[1]},
        StreamOf(args), "group_by_grad");
  });
}

template <bool kByChoice>
KernelStatus Aggregate(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &gates = args.inputs[0], &y = args.outputs[0];
  const std::span<const TensorView> experts = args.inputs.subspan(3);
  Routing routing;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Route(contexts, args, args.inputs[1],
                                        static_cast<int64_t>(experts.size()), CapacityOf(experts),
                                        gates.spec, "aggregate", &routing));
  return DispatchFloat(y.dtype(), "aggregate", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(y.num_elements(),
                   GatherRows<T, kByChoice>{routing, kByChoice ? nullptr : gates.as<T>(),
                                            ExpertRows::Of(experts), y.as<T>(), y.dims()[1]},
                   StreamOf(args), "aggregate");
  });
}

KernelStatus AggregateGradient(DeviceContexts& contexts, const KernelArgs& args, double lambda) {
  const TensorView &gates = args.inputs[0], &assign = args.inputs[1], &dy = args.inputs.back();
  const std::span<const TensorView> experts = args.inputs.subspan(2, args.inputs.size() - 3);
  const std::span<const TensorView> dexperts = args.outputs.subspan(2);
  const TensorView &dgates = args.outputs[0], &dfull = args.outputs[1];
  Routing routing;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Route(contexts, args, assign,
                                        static_cast<int64_t>(experts.size()), CapacityOf(experts),
                                        gates.spec, "aggregate_grad", &routing));
  ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(dexperts, args, "aggregate_grad"));
  return DispatchFloat(dy.dtype(), "aggregate_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    if (dfull.present()) {
      // Shards with other columns of the same samples are summed, so only one of them adds this
      // term.
      const double scale = dy.spec.offset[1] == 0 ? lambda : 0.0;
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          ForEach(dfull.num_elements(),
                  FillBalance<T>{{routing, static_cast<double>(routing.samples), scale, nullptr},
                                 dfull.as<T>()},
                  StreamOf(args), "aggregate_grad"));
    }
    if (gates.num_elements() == 0) return KernelStatus::Ok();
    ChoiceGradient<T, false>
        <<<static_cast<unsigned>(gates.num_elements()), kThreads, 0, StreamOf(args)>>>(
            routing, gates.as<T>(), dy.as<T>(), ExpertRows::Of(experts), ExpertRows::Of(dexperts),
            dgates.as<T>(), dy.dims()[1]);
    return LaunchStatus("aggregate_grad");
  });
}

// One block per sample of this part: the gradient of gate_full (the rule stands in
// ops/operators/aggregate.cc).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ShareGradient(BalanceGradient balance, const T* gates, const T* dy, T* dfull, int64_t width) {
  __shared__ float full[kMaxExperts];
  const Routing& routing = balance.routing;
  const int64_t sample = blockIdx.x, experts = routing.experts;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) full[e] = balance.Of(e);
  const auto error = [&](int64_t choice) {
    float sum = 0;
    for (int64_t j = threadIdx.x; j < width; j += kThreads) {
      const float d = ToFloat(dy[choice * width + j]);
      sum += d * d;
    }
    return BlockSum(sum);
  };
  const int64_t begin = sample * routing.k, end = begin + routing.k;
  float total = 0;
  for (int64_t i = begin; i < end; ++i) total += error(i);
  for (int64_t i = begin; i < end; ++i) {
    const float one = error(i);
    if (threadIdx.x == 0 && total > 0) {
      full[routing.Expert(routing.first + i)] += one / total - (1.0f - ToFloat(gates[i]));
    }
  }
  __syncthreads();
  float mean = 0;
  for (int64_t e = 0; e < experts; ++e) mean += full[e] / static_cast<float>(experts);
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    dfull[sample * experts + e] = FromFloat<T>(full[e] - mean);
  }
}

KernelStatus AggregateSpecGradient(DeviceContexts& contexts, const KernelArgs& args,
                                   double lambda) {
  const TensorView &gates = args.inputs[0], &assign = args.inputs[1], &dy = args.inputs[2];
  const TensorView& dfull = args.outputs[0];
  const std::span<const TensorView> dexperts = args.outputs.subspan(1);
  constexpr const char* kName = "aggregate_spec_grad";
  Routing routing;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Route(contexts, args, assign,
                                        static_cast<int64_t>(dexperts.size()), CapacityOf(dexperts),
                                        gates.spec, kName, &routing));
  ESPALIER_KERNEL_RETURN_IF_ERROR(Zero(dexperts, args, kName));
  return DispatchFloat(dy.dtype(), kName, [&](auto type) {
    using T = typename decltype(type)::T;
    if (gates.num_elements() > 0) {
      ChoiceGradient<T, true>
          <<<static_cast<unsigned>(gates.num_elements()), kThreads, 0, StreamOf(args)>>>(
              routing, gates.as<T>(), dy.as<T>(), ExpertRows{}, ExpertRows::Of(dexperts),
              static_cast<T*>(nullptr), dy.dims()[1]);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(kName));
    }
    if (!dfull.present() || dfull.num_elements() == 0) return KernelStatus::Ok();
    ShareGradient<T><<<static_cast<unsigned>(gates.dims()[0]), kThreads, 0, StreamOf(args)>>>(
        {routing, static_cast<double>(routing.samples), lambda, nullptr}, gates.as<T>(), dy.as<T>(),
        dfull.as<T>(), dy.dims()[1]);
    return LaunchStatus(kName);
  });
}

ReduceShape Whole(int64_t n) { return ReduceShape::Make({n}, {true}); }

// Behind the routing.
size_t ReduceOffset(int64_t choices, int64_t experts) {
  return (Routing::Bytes(choices, experts) + 255) / 256 * 256;
}

KernelStatus Balance(DeviceContexts& contexts, const KernelArgs& args, int64_t count) {
  const TensorView &gates = args.inputs[0], &assign = args.inputs[1];
  Routing routing;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      Route(contexts, args, assign, gates.dims()[1], 0, gates.spec, "load_balance_loss", &routing));
  return DispatchFloat(gates.dtype(), "load_balance_loss", [&](auto type) {
    using T = typename decltype(type)::T;
    return Reduce(
        Whole(gates.num_elements()),
        WeightedGate<T>{{routing, static_cast<double>(count), 1.0, nullptr}, gates.as<T>()},
        StoreScaled<float>{args.outputs[0].as<float>(), 1.0f},
        WorkspaceAt<char>(args, ReduceOffset(routing.choices, routing.experts)), StreamOf(args),
        "load_balance_loss");
  });
}

KernelStatus BalanceBackward(DeviceContexts& contexts, const KernelArgs& args, int64_t count) {
  const TensorView &assign = args.inputs[1], &dgates = args.outputs[0];
  if (!dgates.present()) return KernelStatus::Ok();
  Routing routing;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Route(contexts, args, assign, dgates.dims()[1], 0, dgates.spec,
                                        "load_balance_loss_grad", &routing));
  return DispatchFloat(dgates.dtype(), "load_balance_loss_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        dgates.num_elements(),
        FillBalance<T>{{routing, static_cast<double>(count), 1.0, args.inputs[2].as<float>()},
                       dgates.as<T>()},
        StreamOf(args), "load_balance_loss_grad");
  });
}

using Run = KernelStatus (*)(DeviceContexts&, const KernelArgs&);

// `assign` is input `assign_at`; there are as many experts as `count` says.
template <typename Function, typename Count>
KernelFactory Factory(DeviceContexts& contexts, Function run, size_t assign_at, Count count) {
  return [=, &contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    const int64_t experts = count(spec);
    if (experts > kMaxExperts) {
      *refusal = std::to_string(experts) + " experts are too many for one launch, at most " +
                 std::to_string(kMaxExperts);
      return nullptr;
    }
    const DType dtype = assign_at == 0 ? TypeOf(spec.outputs) : spec.inputs[0].dtype;
    if (!TakesFloat(dtype, refusal)) return nullptr;
    const int64_t choices = NumElements(spec.inputs[assign_at].dims);
    const size_t bytes =
        ReduceOffset(choices, experts) + Whole(NumElements(spec.inputs[0].dims)).WorkspaceBytes();
    return MakeKernel([&contexts, run, attributes = spec.attributes](
                          const KernelArgs& args) { return run(contexts, args, attributes); },
                      bytes);
  };
}

}  // namespace cuda_experts

void RegisterExpertsCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_experts;
  const auto plain = [](Run run) {
    return [run](DeviceContexts& contexts, const KernelArgs& args, const Attributes&) {
      return run(contexts, args);
    };
  };
  const auto weighted = [](KernelStatus (*run)(DeviceContexts&, const KernelArgs&, double)) {
    return [run](DeviceContexts& contexts, const KernelArgs& args, const Attributes& attributes) {
      return run(contexts, args, attributes.Float("lambda_balance"));
    };
  };
  const auto counted = [](KernelStatus (*run)(DeviceContexts&, const KernelArgs&, int64_t)) {
    return [run](DeviceContexts& contexts, const KernelArgs& args, const Attributes& attributes) {
      return run(contexts, args, attributes.Int("count"));
    };
  };
  const auto named = [](const KernelSpec& spec) { return spec.attributes.Int("n"); };
  const auto gates = [](const KernelSpec& spec) { return spec.inputs[0].dims[1]; };
  registry.Add("group_by", Factory(contexts, plain(GroupBy), 1, named));
  registry.Add("group_by_grad", Factory(contexts, plain(GroupByGradient), 0, named));
  registry.Add("aggregate", Factory(contexts, plain(Aggregate<false>), 1, named));
  registry.Add("aggregate_grad", Factory(contexts, weighted(AggregateGradient), 1, named));
  registry.Add("aggregate_spec", Factory(contexts, plain(Aggregate<true>), 1, named));
  registry.Add("aggregate_spec_grad", Factory(contexts, weighted(AggregateSpecGradient), 1, named));
  registry.Add("load_balance_loss", Factory(contexts, counted(Balance), 1, gates));
  registry.Add("load_balance_loss_grad", Factory(contexts, counted(BalanceBackward), 1, gates));
}

}  // namespace espalier
