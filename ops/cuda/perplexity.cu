#include "ops/cuda/cross_entropy.cuh"
#include "ops/cuda/label_loss.cuh"

namespace espalier {
namespace cuda_perplexity {

const char kName[] = "perplexity";

__global__ void __launch_bounds__(kThreads)
    LogKernel(LabelReader labels, const float* logits, float* values) {
  const int64_t label = labels.At(blockIdx.x, threadIdx.x == 0);
  if (label < 0) {
    if (threadIdx.x == 0) values[blockIdx.x] = 0;
    return;
  }
  const float* row = logits + blockIdx.x * labels.classes;
  const LogitStats n = ComputeLogitStats(row, labels.classes);
  if (threadIdx.x == 0) values[blockIdx.x] = logf(n.sum) - (row[label] - n.most);
}

// The mean logarithm: its exponential is taken where it is reported.
class MeanLog : public LabelLossKernel {
 public:
  MeanLog(DeviceContexts& contexts, const KernelSpec& spec)
      : LabelLossKernel(contexts, spec, kName, 2) {}
  KernelStatus Run(const KernelArgs& args) override {
    LabelReader labels;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Labels(args, args.inputs[0].dims().back(), &labels));
    const int64_t rows = args.inputs[1].num_elements();
    if (rows > 0) {
      LogKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
          labels, args.inputs[0].as<float>(), Values(args));
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(kName));
    }
    return Finish(args, labels, nullptr);
  }
};

}  // namespace cuda_perplexity

void RegisterPerplexityCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_perplexity;
  registry.Add(kName, LabelLossFactory<MeanLog>(contexts));
}

}  // namespace espalier
