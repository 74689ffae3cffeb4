#include "ops/cpu/label_loss.h"
#include "ops/cpu/label_rank.h"

namespace espalier {

void RegisterAccuracyCpu(KernelRegistry& registry) {
  registry.Add("accuracy", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([reduction = LabelReduction(spec.attributes)](const KernelArgs& args) {
      const int64_t classes = args.inputs[0].dims().back();
      const float* x = args.inputs[0].as<float>();
      return ReduceLabels("accuracy", reduction, args, 2, classes,
                          std::max<int64_t>(1, kParallelGrain / classes),
                          [&](int64_t r, int64_t label) {
                            return RankInRow(x + r * classes, classes, label) == 0 ? 1.0 : 0.0;
                          });
    });
  });
}

}  // namespace espalier
