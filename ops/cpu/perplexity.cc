#include <cmath>

#include "ops/cpu/cross_entropy.h"
#include "ops/cpu/label_loss.h"

namespace espalier {

void RegisterPerplexityCpu(KernelRegistry& registry) {
  // The mean logarithm: its exponential is taken where it is reported.
  registry.Add("perplexity", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([reduction = LabelReduction(spec.attributes)](const KernelArgs& args) {
      const int64_t classes = args.inputs[0].dims().back();
      const float* x = args.inputs[0].as<float>();
      return ReduceLabels("perplexity", reduction, args, 2, classes, RowBlock(classes),
                          [&](int64_t r, int64_t label) {
                            const float* row = x + r * classes;
                            const float most = RowMax(row, classes);
                            return std::log(RowExp(row, most, nullptr, classes)) -
                                   static_cast<double>(row[label] - most);
                          });
    });
  });
}

}  // namespace espalier
