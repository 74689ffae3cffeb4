// One block per row.
#include <cfloat>

#include "ops/cuda/cross_entropy.cuh"
#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_categorical_crossentropy {

const char kName[] = "categorical_crossentropy";

struct Problem {
  const float* x;
  const float* target;
  int64_t classes;
  bool from_logits;
  float keep, spread;  // t = keep * target + spread
};

__global__ void __launch_bounds__(kThreads) ForwardKernel(Problem p, float* losses) {
  const float* x = p.x + blockIdx.x * p.classes;
  const float* target = p.target + blockIdx.x * p.classes;
  float most = 0, log_sum = 0;
  if (p.from_logits) {
    const LogitStats n = ComputeLogitStats(x, p.classes);
    most = n.most;
    log_sum = logf(n.sum);
  }
  float loss = 0;
  for (int64_t i = threadIdx.x; i < p.classes; i += kThreads) {
    const float t = p.keep * target[i] + p.spread;
    loss += t * (p.from_logits ? log_sum - (x[i] - most) : -logf(x[i] < FLT_MIN ? FLT_MIN : x[i]));
  }
  loss = BlockSum(loss);
  if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

__global__ void __launch_bounds__(kThreads)
    BackwardKernel(Problem p, const float* dy, double count, ExampleWeights examples, float* dx) {
  const float* x = p.x + blockIdx.x * p.classes;
  const float* target = p.target + blockIdx.x * p.classes;
  dx += blockIdx.x * p.classes;
  const float g = static_cast<float>(*dy / count) * examples[blockIdx.x];
  if (!p.from_logits) {
    for (int64_t i = threadIdx.x; i < p.classes; i += kThreads) {
      dx[i] = x[i] < FLT_MIN ? 0.0f : -g * (p.keep * target[i] + p.spread) / x[i];
    }
    return;
  }
  const LogitStats n = ComputeLogitStats(x, p.classes);
  float total = 0;
  for (int64_t i = threadIdx.x; i < p.classes; i += kThreads) {
    total += p.keep * target[i] + p.spread;
  }
  total = BlockSum(total);
  const float factor = g * total / n.sum;
  for (int64_t i = threadIdx.x; i < p.classes; i += kThreads) {
    dx[i] = expf(x[i] - n.most) * factor - g * (p.keep * target[i] + p.spread);
  }
}

struct Settings {
  bool from_logits;
  float keep, spread;
  double count;

  explicit Settings(const KernelSpec& spec) {
    const double smoothing = spec.attributes.Float("label_smoothing");
    from_logits = spec.attributes.Bool("from_logits");
    keep = static_cast<float>(1.0 - smoothing);
    spread = static_cast<float>(smoothing / static_cast<double>(spec.inputs[0].dims.back()));
    count = DivisorOf(spec.attributes);
  }
  Problem Of(const KernelArgs& args) const {
    return {args.inputs[0].as<float>(),
            args.inputs[1].as<float>(),
            args.inputs[0].dims().back(),
            from_logits,
            keep,
            spread};
  }
};

KernelStatus Forward(const KernelArgs& args, const Settings& settings, size_t partial) {
  const int64_t rows = RowsOf(args.inputs[0].dims());
  float* losses = static_cast<float*>(args.workspace);
  if (rows > 0) {
    ForwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(settings.Of(args),
                                                                                losses);
    ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(kName));
  }
  return Reduce(OverAll(rows), StoredValue{losses, ExampleWeights::Of(args, 2, false, rows)},
                StoreQuotient{args.outputs[0].as<float>(), settings.count},
                WorkspaceAt(args, partial), StreamOf(args), kName);
}

}  // namespace cuda_categorical_crossentropy

void RegisterCategoricalCrossentropyCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_categorical_crossentropy;
  registry.Add(kName, ForF32([](const KernelSpec& spec) {
                 const int64_t rows = RowsOf(spec.inputs[0].dims);
                 WorkspaceLayout layout;
                 layout.Add(rows * sizeof(float));
                 const size_t partial = layout.Add(OverAll(rows).WorkspaceBytes());
                 return MakeKernel(
                     [settings = Settings(spec), partial](const KernelArgs& args) {
                       return Forward(args, settings, partial);
                     },
                     layout.bytes());
               }));
  registry.Add("categorical_crossentropy_grad", ForF32([](const KernelSpec& spec) {
                 return MakeKernel([settings = Settings(spec)](const KernelArgs& args) {
                   const int64_t rows = RowsOf(args.inputs[0].dims());
                   if (rows == 0) return KernelStatus::Ok();
                   BackwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
                       settings.Of(args), args.inputs.back().as<float>(), settings.count,
                       ExampleWeights::Of(args, 2, true, rows), args.outputs[0].as<float>());
                   return LaunchStatus(kName);
                 });
               }));
}

}  // namespace espalier
