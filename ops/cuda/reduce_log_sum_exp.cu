#include "ops/cuda/reduce_min_max.cuh"

namespace espalier {
namespace cuda_reduce_log_sum_exp {

// e to the distance from the largest of its kind; an infinite one is left to the result.
template <typename T>
struct ShiftedExp {
  const T* x;
  const float* most;
  BroadcastIndex index;
  __device__ float operator()(int64_t i) const {
    const float shift = most[index(i)];
    return expf(ToFloat(x[i]) - (isinf(shift) ? 0.0f : shift));
  }
};

template <typename T>
struct LogInto {
  const float* most;
  T* y;
  __device__ void operator()(int64_t o, float sum) const {
    y[o] = FromFloat<T>((isinf(most[o]) ? 0.0f : most[o]) + logf(sum));
  }
};

// Where y is infinite, so is the slope of its logarithm: those gradients count as 0.
struct Gradient {
  __device__ float operator()(float x, float y, float dy) const {
    return isinf(y) ? 0.0f : dy * expf(x - y);
  }
};

KernelStatus Run(const ReductionPlan& plan, const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  float* most = WorkspaceAt<float>(args, plan.extra);
  return DispatchFloat(x.dtype(), "reduce_log_sum_exp", [&](auto type) {
    using T = typename decltype(type)::T;
    using Most = ExtremeOp<float, /*largest=*/true>;
    ESPALIER_KERNEL_RETURN_IF_ERROR(plan.Run<Most>(
        x.dims(), NumberOf<T>{x.as<T>()}, StoreRaw<float>{most}, args, "reduce_log_sum_exp"));
    return plan.Run<SumOp>(x.dims(), ShiftedExp<T>{x.as<T>(), most, plan.Index(x.dims())},
                           LogInto<T>{most, y.as<T>()}, args, "reduce_log_sum_exp");
  });
}

}  // namespace cuda_reduce_log_sum_exp

void RegisterReduceLogSumExpCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_reduce_log_sum_exp;
  registry.Add("reduce_log_sum_exp",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 const ReductionPlan plan =
                     ReductionPlan::Make<SumOp>(spec, spec.inputs[0].dims, sizeof(float));
                 return MakeKernel([plan](const KernelArgs& args) { return Run(plan, args); },
                                   plan.layout.bytes());
               });
  AddFoldGradient</*saves_input=*/true, /*saves_output=*/true>(registry, "reduce_log_sum_exp_grad",
                                                               Gradient());
}

}  // namespace espalier
