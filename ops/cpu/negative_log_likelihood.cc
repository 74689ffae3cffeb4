#include <algorithm>

#include "ops/cpu/label_loss.h"

namespace espalier {
namespace {

const char kName[] = "negative_log_likelihood";

// Label i, of batch element i / inner, looks at element (batch, label, i % inner).
struct Places {
  int64_t classes, inner = 1;

  explicit Places(const Dims& dims) : classes(dims[1]) {
    for (size_t d = 2; d < dims.size(); ++d) inner *= dims[d];
  }
  int64_t At(int64_t i, int64_t label) const {
    const int64_t batch = i / inner;
    return (batch * classes + label) * inner + (i - batch * inner);
  }
};

KernelStatus Forward(const KernelArgs& args, const LabelReduction& reduction) {
  const Places places(args.inputs[0].dims());
  const float* x = args.inputs[0].as<float>();
  const float* weights = ClassWeights(args);
  return ReduceLabels(kName, reduction, args, 3, places.classes, kParallelGrain,
                      [&](int64_t i, int64_t label) {
                        const double weight = weights != nullptr ? weights[label] : 1.0;
                        return -weight * static_cast<double>(x[places.At(i, label)]);
                      });
}

KernelStatus Backward(const KernelArgs& args, const LabelReduction& reduction) {
  const TensorView &labels = args.inputs[1], &dx = args.outputs[0];
  const Places places(dx.dims());
  KernelStatus status = CheckLabels(kName, labels, places.classes, reduction.ignore_index);
  if (!status.ok()) return status;
  float* out = dx.as<float>();
  ParallelFor(dx.num_elements(), 1,
              [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, 0.0f); });
  const float* weights = args.inputs.size() > 3 ? ClassWeights(args) : nullptr;
  const LabelGradients gradients(reduction, args, weights);
  ParallelFor(labels.num_elements(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t label = IntegerAt(labels, i);
      if (label == reduction.ignore_index) continue;
      const double weight = weights != nullptr ? weights[label] : 1.0;
      out[places.At(i, label)] = static_cast<float>(-weight * gradients[i]);
    }
  });
  return KernelStatus::Ok();
}

template <typename Run>
KernelFactory Factory(Run run) {
  return [run](const KernelSpec& spec, std::string*) {
    return MakeKernel([run, reduction = LabelReduction(spec.attributes)](const KernelArgs& args) {
      return run(args, reduction);
    });
  };
}

}  // namespace

void RegisterNegativeLogLikelihoodCpu(KernelRegistry& registry) {
  registry.Add(kName, Factory(Forward));
  registry.Add(std::string(kName) + "_grad", Factory(Backward));
}

}  // namespace espalier
