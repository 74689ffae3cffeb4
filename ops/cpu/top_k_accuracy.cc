#include "ops/cpu/label_loss.h"
#include "ops/cpu/label_rank.h"

namespace espalier {

void RegisterTopKAccuracyCpu(KernelRegistry& registry) {
  registry.Add("top_k_accuracy", [](const KernelSpec& spec, std::string*) {
    const int64_t k = spec.attributes.Int("k");
    return MakeKernel([k, reduction = LabelReduction(spec.attributes)](const KernelArgs& args) {
      const int64_t classes = args.inputs[0].dims().back();
      const float* x = args.inputs[0].as<float>();
      return ReduceLabels("top_k_accuracy", reduction, args, 2, classes,
                          std::max<int64_t>(1, kParallelGrain / classes),
                          [&](int64_t r, int64_t label) {
                            const float* row = x + r * classes;
                            // The comparison leaves NaN out.
                            const bool number = row[label] == row[label];
                            return number && RankInRow(row, classes, label) < k ? 1.0 : 0.0;
                          });
    });
  });
}

}  // namespace espalier
