#include <algorithm>

#include "ops/cpu/loss.h"

namespace espalier {

void RegisterIdentityLossCpu(KernelRegistry& registry) {
  registry.Add("identity_loss", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([divisor = DivisorOf(spec.attributes)](const KernelArgs& args) {
      const float* x = args.inputs[0].as<float>();
      const int64_t elements = args.inputs[0].num_elements();
      const ExampleWeights examples(args, 1, /*gradient=*/false, elements);
      const double sum = BlockedSum(elements, kParallelGrain, [&](int64_t begin, int64_t end) {
        double part = 0;
        for (int64_t i = begin, n; i < end; i += n) {
          n = examples.Run(i, std::min(kSumBlock, end - i));
          part += examples[i] * SumBlock(x + i, n);
        }
        return part;
      });
      *args.outputs[0].as<float>() = static_cast<float>(sum / divisor);
      return KernelStatus::Ok();
    });
  });
  registry.Add("identity_loss_grad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([divisor = DivisorOf(spec.attributes)](const KernelArgs& args) {
      const TensorView& dx = args.outputs[0];
      const double value = *args.inputs.back().as<float>() / divisor;
      const ExampleWeights examples(args, 0, /*gradient=*/true, dx.num_elements());
      ParallelFor(dx.num_elements(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin, n; i < end; i += n) {
          n = examples.Run(i, end - i);
          std::fill_n(dx.as<float>() + i, n, static_cast<float>(value * examples[i]));
        }
      });
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
