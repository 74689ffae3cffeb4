#include <algorithm>

#include "ops/cpu/cross_entropy.h"
#include "ops/cpu/example_weights.h"
#include "ops/cpu/label_rank.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

// The first of the largest of `target`, if it is that of `x` too. NaN is wrong on either side.
bool IsRight(const float* x, const float* target, int64_t classes) {
  const int64_t place = std::max_element(target, target + classes) - target;
  return RankInRow(target, classes, place) == 0 && RankInRow(x, classes, place) == 0;
}

}  // namespace

void RegisterCategoricalAccuracyCpu(KernelRegistry& registry) {
  registry.Add("categorical_accuracy", [](const KernelSpec& spec, std::string*) {
    const double count = static_cast<double>(spec.attributes.Int("count"));
    return MakeKernel([count](const KernelArgs& args) {
      const int64_t classes = args.inputs[0].dims().back();
      const float* x = args.inputs[0].as<float>();
      const float* target = args.inputs[1].as<float>();
      const int64_t rows = args.inputs[0].num_elements() / classes;
      const ExampleWeights examples(args, 2, /*gradient=*/false, rows);
      const double right = BlockedSum(
          rows, std::max<int64_t>(1, kParallelGrain / classes), [&](int64_t begin, int64_t end) {
            double part = 0;
            for (int64_t r = begin; r < end; ++r) {
              part += IsRight(x + r * classes, target + r * classes, classes) ? examples[r] : 0.0;
            }
            return part;
          });
      *args.outputs[0].as<float>() = static_cast<float>(right / count);
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
