// Fused log-softmax and negative log-likelihood in one pass over each row of logits, and their
// gradient.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cross_entropy.h"
#include "ops/cpu/label_loss.h"

namespace espalier {
namespace {

const char kName[] = "sparse_categorical_crossentropy";

// Of a row with label y the loss is (on_label * w_y) * -log p_y + everywhere * sum_c w_c * -log
// p_c.
struct Smoothing {
  double on_label, everywhere;

  Smoothing(const Attributes& attributes, int64_t classes) {
    const double smoothing = attributes.Float("label_smoothing");
    on_label = 1.0 - smoothing;
    everywhere = smoothing / static_cast<double>(classes);
  }
};

double SumOfWeights(const float* weights, int64_t classes) {
  if (weights == nullptr) return static_cast<double>(classes);
  return RowSum([](float w, float) { return w; }, weights, weights, classes);
}

KernelStatus Forward(const KernelArgs& args, const Attributes& attributes) {
  const int64_t classes = args.inputs[0].dims().back();
  const LabelReduction reduction(attributes);
  const Smoothing smoothing(attributes, classes);
  const float* x = args.inputs[0].as<float>();
  const float* weights = ClassWeights(args);
  const double total = SumOfWeights(weights, classes);
  return ReduceLabels(
      kName, reduction, args, 3, classes, RowBlock(classes), [&](int64_t r, int64_t label) {
        const float* row = x + r * classes;
        const float most = RowMax(row, classes);
        const double log_sum = std::log(RowExp(row, most, nullptr, classes));
        const double weight = weights != nullptr ? weights[label] : 1.0;
        double loss =
            smoothing.on_label * weight * (log_sum - static_cast<double>(row[label] - most));
        if (smoothing.everywhere > 0) {
          const double gaps =
              weights != nullptr
                  ? RowSum([most](float x, float w) { return w * (most - x); }, row, weights,
                           classes)
                  : RowSum([most](float x, float) { return most - x; }, row, row, classes);
          loss += smoothing.everywhere * (total * log_sum + gaps);
        }
        return loss;
      });
}

// g * ((on_label w_y + everywhere sum(w)) softmax - everywhere w - on_label w_y at the label)
KernelStatus Backward(const KernelArgs& args, const Attributes& attributes) {
  const TensorView &labels = args.inputs[1], &dx = args.outputs[0];
  const int64_t classes = args.inputs[0].dims().back(), rows = labels.num_elements();
  const LabelReduction reduction(attributes);
  KernelStatus status = CheckLabels(kName, labels, classes, reduction.ignore_index);
  if (!status.ok()) return status;
  const Smoothing smoothing(attributes, classes);
  const float* x = args.inputs[0].as<float>();
  const float* weights = args.inputs.size() > 3 ? ClassWeights(args) : nullptr;
  const double total = SumOfWeights(weights, classes);
  const LabelGradients gradients(reduction, args, weights);
  ParallelFor(rows, kRowWork * classes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t label = IntegerAt(labels, r);
      float* out = dx.as<float>() + r * classes;
      if (label == reduction.ignore_index) {
        std::fill(out, out + classes, 0.0f);
        continue;
      }
      const float* row = x + r * classes;
      const double sum = RowExp(row, RowMax(row, classes), out, classes);
      const double dy = gradients[r];
      const double at_label = dy * smoothing.on_label * (weights != nullptr ? weights[label] : 1.0);
      const double spread = dy * smoothing.everywhere;
      const float factor = static_cast<float>((at_label + spread * total) / sum);
      const float less = static_cast<float>(spread);
      if (weights != nullptr) {
        RowMap([=](float e, float w) { return e * factor - less * w; }, out, weights, out, classes);
      } else {
        RowMap([=](float e, float) { return e * factor - less; }, out, out, out, classes);
      }
      out[label] -= static_cast<float>(at_label);
    }
  });
  return KernelStatus::Ok();
}

template <typename Run>
KernelFactory Factory(Run run) {
  return [run](const KernelSpec& spec, std::string*) {
    return MakeKernel([run, attributes = spec.attributes](const KernelArgs& args) {
      return run(args, attributes);
    });
  };
}

}  // namespace

void RegisterSparseCategoricalCrossentropyCpu(KernelRegistry& registry) {
  registry.Add(kName, Factory(Forward));
  registry.Add(std::string(kName) + "_grad", Factory(Backward));
}

}  // namespace espalier
