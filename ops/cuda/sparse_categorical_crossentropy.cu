// Fused log-softmax and negative log-likelihood, one block per row of logits, and their gradient.
#include "ops/cuda/cross_entropy.cuh"
#include "ops/cuda/label_loss.cuh"

namespace espalier {
namespace cuda_sparse_categorical_crossentropy {

const char kName[] = "sparse_categorical_crossentropy";

struct Problem {
  LabelReader labels;
  const float* logits;
  const float* weights;  // may be null: 1
  // The loss of a row with label y is (on_label * w_y) * -log p_y + everywhere * sum_c w_c * -log
  // p_c.
  float on_label, everywhere;

  __device__ float Weight(int64_t i) const { return weights != nullptr ? weights[i] : 1.0f; }
};

__global__ void __launch_bounds__(kThreads) ForwardKernel(Problem p, float* losses) {
  const int64_t classes = p.labels.classes;
  const int64_t label = p.labels.At(blockIdx.x, threadIdx.x == 0);
  if (label < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    return;
  }
  const float* row = p.logits + blockIdx.x * classes;
  const LogitStats n = ComputeLogitStats(row, classes);
  const float log_sum = logf(n.sum);
  float spread = 0;
  if (p.everywhere > 0) {
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
      spread += p.Weight(i) * (log_sum - (row[i] - n.most));
    }
    spread = BlockSum(spread);
  }
  if (threadIdx.x == 0) {
    losses[blockIdx.x] =
        p.on_label * p.Weight(label) * (log_sum - (row[label] - n.most)) + p.everywhere * spread;
  }
}

// g * ((on_label w_y + everywhere sum(w)) softmax - everywhere w - on_label w_y at the label)
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(Problem p, LabelGradients gradients, float* dx) {
  const int64_t classes = p.labels.classes;
  dx += blockIdx.x * classes;
  const int64_t label = p.labels.At(blockIdx.x, threadIdx.x == 0);
  if (label < 0) {
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) dx[i] = 0;
    return;
  }
  const float* row = p.logits + blockIdx.x * classes;
  const LogitStats n = ComputeLogitStats(row, classes);
  float total = static_cast<float>(classes);
  if (p.everywhere > 0 && p.weights != nullptr) {
    total = 0;
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) total += p.weights[i];
    total = BlockSum(total);
  }
  const float dy = gradients[blockIdx.x];
  const float at_label = dy * p.on_label * p.Weight(label), spread = dy * p.everywhere;
  const float factor = (at_label + spread * total) / n.sum;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
    float value = expf(row[i] - n.most) * factor;
    if (p.everywhere > 0) value -= spread * p.Weight(i);
    dx[i] = i == label ? value - at_label : value;
  }
}

class CrossEntropyKernel : public LabelLossKernel {
 public:
  CrossEntropyKernel(DeviceContexts& contexts, const KernelSpec& spec)
      : LabelLossKernel(contexts, spec, kName, 3),
        smoothing_(spec.attributes.Float("label_smoothing", 0.0)) {}

 protected:
  KernelStatus Prepare(const KernelArgs& args, bool gradient, Problem* problem) const {
    const TensorView& logits = args.inputs[0];
    const int64_t classes = logits.dims().back();
    ESPALIER_KERNEL_RETURN_IF_ERROR(Labels(args, classes, &problem->labels));
    problem->logits = logits.as<float>();
    problem->weights = ClassWeights(args, gradient);
    problem->on_label = static_cast<float>(1.0 - smoothing_);
    problem->everywhere = static_cast<float>(smoothing_ / static_cast<double>(classes));
    return KernelStatus::Ok();
  }

 private:
  const double smoothing_;
};

class Forward : public CrossEntropyKernel {
 public:
  using CrossEntropyKernel::CrossEntropyKernel;
  KernelStatus Run(const KernelArgs& args) override {
    Problem problem;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(args, false, &problem));
    const int64_t rows = args.inputs[1].num_elements();
    if (rows > 0) {
      ForwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(problem,
                                                                                  Values(args));
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(kName));
    }
    return Finish(args, problem.labels, problem.weights);
  }
};

// logits, labels, weights?, example_weights?, dy -> dlogits
class Backward : public CrossEntropyKernel {
 public:
  using CrossEntropyKernel::CrossEntropyKernel;
  KernelStatus Run(const KernelArgs& args) override {
    const int64_t rows = args.inputs[1].num_elements();
    if (!args.outputs[0].present() || rows == 0) return KernelStatus::Ok();
    Problem problem;
    LabelGradients gradients;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(args, true, &problem));
    ESPALIER_KERNEL_RETURN_IF_ERROR(Gradients(args, problem.labels, problem.weights, &gradients));
    BackwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
        problem, gradients, args.outputs[0].as<float>());
    return LaunchStatus(kName);
  }
};

}  // namespace cuda_sparse_categorical_crossentropy

void RegisterSparseCategoricalCrossentropyCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_sparse_categorical_crossentropy;
  registry.Add(kName, LabelLossFactory<Forward>(contexts));
  registry.Add(std::string(kName) + "_grad", LabelLossFactory<Backward>(contexts));
}

}  // namespace espalier
