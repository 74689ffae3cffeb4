// Shared by losses with labels: which labels count, their weights, and how values are reduced.
#pragma once

#include <string>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/example_weights.h"
#include "ops/cpu/labels.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Attributes `reduction`, `mean_over`, `count` and `ignore_index`; those that an operator does not
// have stand for the mean over all labels.
struct LabelReduction {
  bool none, sum, counted;
  double count;
  int64_t ignore_index;

  explicit LabelReduction(const Attributes& attributes)
      : none(attributes.String("reduction") == "none"),
        sum(attributes.String("reduction") == "sum"),
        counted(attributes.String("mean_over") == "counted"),
        count(static_cast<double>(attributes.Int("count"))),
        ignore_index(attributes.Int("ignore_index")) {}
};

inline const float* ClassWeights(const KernelArgs& args) {
  return args.inputs.size() > 2 && args.inputs[2].present() ? args.inputs[2].as<float>() : nullptr;
}

// Returns the divisor of the sum over labels.
inline double LabelDivisor(const LabelReduction& reduction, const TensorView& labels,
                           const float* weights) {
  if (reduction.none || reduction.sum) return 1.0;
  if (!reduction.counted) return reduction.count;
  return BlockedSum(labels.num_elements(), kParallelGrain, [&](int64_t begin, int64_t end) {
    double part = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t label = IntegerAt(labels, i);
      if (label == reduction.ignore_index) continue;
      part += weights != nullptr ? static_cast<double>(weights[label]) : 1.0;
    }
    return part;
  });
}

// Inputs: scores, labels, weights?; example_weights? is input `example_weights`. loss(i, label) is
// the value of label i; a thread takes `block` labels at once.
template <typename Loss>
KernelStatus ReduceLabels(const std::string& op, const LabelReduction& reduction,
                          const KernelArgs& args, size_t example_weights, int64_t classes,
                          int64_t block, const Loss& loss) {
  const TensorView& labels = args.inputs[1];
  KernelStatus status = CheckLabels(op, labels, classes, reduction.ignore_index);
  if (!status.ok()) return status;
  float* out = args.outputs[0].as<float>();
  const ExampleWeights examples(args, example_weights, /*gradient=*/false, labels.num_elements());
  const double sum = BlockedSum(labels.num_elements(), block, [&](int64_t begin, int64_t end) {
    double part = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t label = IntegerAt(labels, i);
      const double value = label == reduction.ignore_index ? 0.0 : examples[i] * loss(i, label);
      if (reduction.none) out[i] = static_cast<float>(value);
      part += value;
    }
    return part;
  });
  if (reduction.none) return KernelStatus::Ok();
  *out = static_cast<float>(sum / LabelDivisor(reduction, labels, ClassWeights(args)));
  return KernelStatus::Ok();
}

// Returns the gradient with respect to the value of label i. Inputs: scores, labels, weights?,
// example_weights?, dy.
class LabelGradients {
 public:
  LabelGradients(const LabelReduction& reduction, const KernelArgs& args, const float* weights)
      : each_(reduction.none),
        dy_(args.inputs.back().as<float>()),
        examples_(args, 3, /*gradient=*/true, args.inputs[1].num_elements()) {
    if (!each_) factor_ = *dy_ / LabelDivisor(reduction, args.inputs[1], weights);
  }
  double operator[](int64_t i) const {
    return each_ ? static_cast<double>(dy_[i]) : factor_ * examples_[i];
  }

 private:
  const bool each_;
  const float* dy_;
  const ExampleWeights examples_;
  double factor_ = 0;
};

}  // namespace espalier
