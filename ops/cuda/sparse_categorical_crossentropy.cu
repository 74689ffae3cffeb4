// Log-softmax and the negative log-likelihood, one block per row of logits, and their gradient.
#include "ops/cuda/labels.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace {

const char kName[] = "sparse_categorical_crossentropy";

struct Problem {
  const float* logits;
  Integers labels;
  int64_t classes;
  int64_t ignore_index;
  FaultSink faults;

  // The label of this block's row; -1 where the row adds nothing.
  __device__ int64_t Label() const {
    const int64_t label = labels[blockIdx.x];
    if (label == ignore_index) return -1;
    if (label < 0 || label >= classes) {
      if (threadIdx.x == 0) faults.Report(FaultKind::kLabel, blockIdx.x, label, classes);
      return -1;
    }
    return label;
  }
};

struct Normaliser {
  float most, sum;
};

// The row's maximum and the sum of exp(x - maximum).
__device__ Normaliser Normalise(const float* row, int64_t classes) {
  float most = -INFINITY;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) most = fmaxf(most, row[i]);
  most = BlockMax(most);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) sum += expf(row[i] - most);
  return {most, BlockSum(sum)};
}

__global__ void __launch_bounds__(kThreads) ForwardKernel(Problem p, float* losses) {
  const int64_t label = p.Label();
  if (label < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    return;
  }
  const float* row = p.logits + blockIdx.x * p.classes;
  const Normaliser n = Normalise(row, p.classes);
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(n.sum) - (row[label] - n.most);
}

// (softmax(row) - one at the label) * dy / count
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(Problem p, const float* dy, double count, float* dx) {
  dx += blockIdx.x * p.classes;
  const int64_t label = p.Label();
  if (label < 0) {
    for (int64_t i = threadIdx.x; i < p.classes; i += kThreads) dx[i] = 0;
    return;
  }
  const float* row = p.logits + blockIdx.x * p.classes;
  const Normaliser n = Normalise(row, p.classes);
  const float factor = static_cast<float>(*dy / count), scale = factor / n.sum;
  for (int64_t i = threadIdx.x; i < p.classes; i += kThreads) {
    const float value = expf(row[i] - n.most) * scale;
    dx[i] = i == label ? value - factor : value;
  }
}

struct LossAt {
  const float* losses;
  __device__ float operator()(int64_t i) const { return losses[i]; }
};

ReduceShape OverRows(int64_t rows) { return ReduceShape::Make({rows}, {true}); }

class CrossEntropyKernel : public Kernel {
 public:
  CrossEntropyKernel(DeviceContexts& contexts, const KernelSpec& spec)
      : contexts_(contexts),
        count_(static_cast<double>(spec.attributes.Int("count", 1))),
        ignore_index_(spec.attributes.Int("ignore_index", -100)) {}

 protected:
  KernelStatus Prepare(const KernelArgs& args, Problem* problem) const {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
    const TensorView& logits = args.inputs[0];
    *problem = {logits.as<float>(), Integers::Of(args.inputs[1]), logits.dims().back(),
                ignore_index_, context->faults()};
    return KernelStatus::Ok();
  }
  double count() const { return count_; }

 private:
  DeviceContexts& contexts_;
  const double count_;
  const int64_t ignore_index_;
};

// The workspace holds the loss of every row, then Reduce's partial sums.
class Forward : public CrossEntropyKernel {
 public:
  Forward(DeviceContexts& contexts, const KernelSpec& spec) : CrossEntropyKernel(contexts, spec) {
    const int64_t rows = spec.inputs[1].num_elements();
    layout_.Add(rows * sizeof(float));
    partial_ = layout_.Add(OverRows(rows).WorkspaceBytes());
  }
  size_t workspace_bytes() const override { return layout_.bytes(); }
  KernelStatus Run(const KernelArgs& args) override {
    Problem problem;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(args, &problem));
    const int64_t rows = args.inputs[1].num_elements();
    float* losses = static_cast<float*>(args.workspace);
    if (rows > 0) {
      ForwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(problem, losses);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(kName));
    }
    return Reduce(OverRows(rows), LossAt{losses},
                  StoreQuotient{args.outputs[0].as<float>(), count()}, WorkspaceAt(args, partial_),
                  StreamOf(args), kName);
  }

 private:
  WorkspaceLayout layout_;
  size_t partial_ = 0;
};

// logits, labels, dy -> dlogits
class Backward : public CrossEntropyKernel {
 public:
  using CrossEntropyKernel::CrossEntropyKernel;
  KernelStatus Run(const KernelArgs& args) override {
    const int64_t rows = args.inputs[1].num_elements();
    if (!args.outputs[0].present() || rows == 0) return KernelStatus::Ok();
    Problem problem;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(args, &problem));
    BackwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
        problem, args.inputs[2].as<float>(), count(), args.outputs[0].as<float>());
    return LaunchStatus(kName);
  }
};

template <typename K>
KernelFactory Factory(DeviceContexts& contexts) {
  return [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesType(spec.inputs[0].dtype, {DType::kF32}, refusal)) return nullptr;
    return std::make_unique<K>(contexts, spec);
  };
}

}  // namespace

void RegisterSparseCategoricalCrossentropyCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add(kName, Factory<Forward>(contexts));
  registry.Add(std::string(kName) + "_grad", Factory<Backward>(contexts));
}

}  // namespace espalier
