#include "ops/cuda/label_loss.cuh"

namespace espalier {
namespace cuda_negative_log_likelihood {

const char kName[] = "negative_log_likelihood";

// Label i, of batch element i / inner, selects element (batch, label, i % inner).
struct Places {
  int64_t classes, inner = 1;

  explicit Places(const Dims& dims) : classes(dims[1]) {
    for (size_t d = 2; d < dims.size(); ++d) inner *= dims[d];
  }
  __device__ int64_t At(int64_t i, int64_t label) const {
    const int64_t batch = i / inner;
    return (batch * classes + label) * inner + (i - batch * inner);
  }
};

struct Loss {
  LabelReader labels;
  Places places;
  const float* scores;
  const float* weights;
  float* values;
  __device__ void operator()(int64_t i) const {
    const int64_t label = labels.At(i, true);
    if (label < 0) {
      values[i] = 0;
      return;
    }
    values[i] = -(weights != nullptr ? weights[label] : 1.0f) * scores[places.At(i, label)];
  }
};

// One thread per label writes the whole column of classes.
struct Slope {
  LabelReader labels;
  Places places;
  const float* weights;
  LabelGradients gradients;
  float* dx;
  __device__ void operator()(int64_t i) const {
    const int64_t label = labels.At(i, true);
    for (int64_t c = 0; c < places.classes; ++c) {
      float value = 0;
      if (c == label) value = -(weights != nullptr ? weights[label] : 1.0f) * gradients[i];
      dx[places.At(i, c)] = value;
    }
  }
};

class Forward : public LabelLossKernel {
 public:
  Forward(DeviceContexts& contexts, const KernelSpec& spec)
      : LabelLossKernel(contexts, spec, kName, 3) {}
  KernelStatus Run(const KernelArgs& args) override {
    const Places places(args.inputs[0].dims());
    LabelReader labels;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Labels(args, places.classes, &labels));
    const float* weights = ClassWeights(args, false);
    const Loss loss{labels, places, args.inputs[0].as<float>(), weights, Values(args)};
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        ForEach(args.inputs[1].num_elements(), loss, StreamOf(args), kName));
    return Finish(args, labels, weights);
  }
};

// log_probabilities, labels, weights?, example_weights?, dy -> their gradient
class Backward : public LabelLossKernel {
 public:
  Backward(DeviceContexts& contexts, const KernelSpec& spec)
      : LabelLossKernel(contexts, spec, kName, 3) {}
  KernelStatus Run(const KernelArgs& args) override {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const Places places(args.outputs[0].dims());
    LabelReader labels;
    LabelGradients gradients;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Labels(args, places.classes, &labels));
    const float* weights = ClassWeights(args, true);
    ESPALIER_KERNEL_RETURN_IF_ERROR(Gradients(args, labels, weights, &gradients));
    return ForEach(args.inputs[1].num_elements(),
                   Slope{labels, places, weights, gradients, args.outputs[0].as<float>()},
                   StreamOf(args), kName);
  }
};

}  // namespace cuda_negative_log_likelihood

void RegisterNegativeLogLikelihoodCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_negative_log_likelihood;
  registry.Add(kName, LabelLossFactory<Forward>(contexts));
  registry.Add(std::string(kName) + "_grad", LabelLossFactory<Backward>(contexts));
}

}  // namespace espalier
