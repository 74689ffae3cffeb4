#include <string>

#include "ops/cpu/labels.h"
#include "ops/cpu/sum.h"
#include "ops/cpu/vectorize.h"

namespace espalier {
namespace {

// Whether `label` is the first of the largest. Comparisons with NaN are false, which makes them
// wrong.
bool IsRight(const float* row, int64_t classes, int64_t label) {
  const int64_t right = Vectorize(
      [](const float* row, int64_t classes, int64_t label) {
        const float score = row[label];
        int64_t right = 0;
#pragma omp simd reduction(+ : right)
        for (int64_t i = 0; i < label; ++i) right += row[i] < score;
#pragma omp simd reduction(+ : right)
        for (int64_t i = label; i < classes; ++i) right += row[i] <= score;
        return right;
      },
      row, classes, label);
  return right == classes;
}

KernelStatus Run(const KernelArgs& args, int64_t count, int64_t ignore_index) {
  const TensorView &logits = args.inputs[0], &labels = args.inputs[1];
  const int64_t classes = logits.dims().back(), rows = labels.num_elements();
  if (KernelStatus status = CheckLabels("accuracy", labels, classes, ignore_index); !status.ok()) {
    return status;
  }
  const int64_t block = std::max<int64_t>(1, kParallelGrain / classes);
  const double right = BlockedSum(rows, block, [&](int64_t begin, int64_t end) {
    int64_t part = 0;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t label = IntegerAt(labels, r);
      if (label != ignore_index && IsRight(logits.as<float>() + r * classes, classes, label))
        ++part;
    }
    return static_cast<double>(part);
  });
  *args.outputs[0].as<float>() = static_cast<float>(right / static_cast<double>(count));
  return KernelStatus::Ok();
}

}  // namespace

void RegisterAccuracyCpu(KernelRegistry& registry) {
  registry.Add("accuracy", [](const KernelSpec& spec, std::string*) {
    const int64_t count = spec.attributes.Int("count");
    const int64_t ignore_index = spec.attributes.Int("ignore_index");
    return MakeKernel([=](const KernelArgs& args) { return Run(args, count, ignore_index); });
  });
}

}  // namespace espalier
