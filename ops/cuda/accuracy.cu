#include "ops/cuda/labels.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace {

// One block per row: 1 if the label is the first of the largest. Comparisons with NaN are false,
// which makes them wrong.
__global__ void __launch_bounds__(kThreads)
    RightKernel(const float* logits, Integers labels, int64_t classes, int64_t ignore_index,
                FaultSink faults, float* right) {
  const int64_t label = labels[blockIdx.x];
  if (label < 0 || label >= classes) {
    if (threadIdx.x == 0) {
      if (label != ignore_index) faults.Report(FaultKind::kLabel, blockIdx.x, label, classes);
      right[blockIdx.x] = 0;
    }
    return;
  }
  const float* row = logits + blockIdx.x * classes;
  const float score = row[label];
  bool all = label != ignore_index;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
    all = all && (i < label ? row[i] < score : row[i] <= score);
  }
  const bool whole = __syncthreads_and(all) != 0;
  if (threadIdx.x == 0) right[blockIdx.x] = whole ? 1.0f : 0.0f;
}

struct RightAt {
  const float* right;
  __device__ float operator()(int64_t i) const { return right[i]; }
};

ReduceShape OverRows(int64_t rows) { return ReduceShape::Make({rows}, {true}); }

KernelStatus Run(DeviceContexts& contexts, const KernelArgs& args, double count,
                 int64_t ignore_index) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const TensorView& logits = args.inputs[0];
  const int64_t rows = args.inputs[1].num_elements();
  WorkspaceLayout layout;
  float* right = WorkspaceAt<float>(args, layout.Add(rows * sizeof(float)));
  if (rows > 0) {
    RightKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
        logits.as<float>(), Integers::Of(args.inputs[1]), logits.dims().back(), ignore_index,
        context->faults(), right);
    ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("accuracy"));
  }
  return Reduce(OverRows(rows), RightAt{right}, StoreQuotient{args.outputs[0].as<float>(), count},
                WorkspaceAt(args, layout.bytes()), StreamOf(args), "accuracy");
}

}  // namespace

void RegisterAccuracyCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add(
      "accuracy",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesType(spec.inputs[0].dtype, {DType::kF32}, refusal)) return nullptr;
        const double count = static_cast<double>(spec.attributes.Int("count", 1));
        const int64_t ignore_index = spec.attributes.Int("ignore_index", -100);
        const int64_t rows = spec.inputs[1].num_elements();
        WorkspaceLayout layout;
        layout.Add(rows * sizeof(float));
        layout.Add(OverRows(rows).WorkspaceBytes());
        return MakeKernel(
            [&contexts, count, ignore_index](const KernelArgs& args) {
              return Run(contexts, args, count, ignore_index);
            },
            layout.bytes());
      });
}

}  // namespace espalier
