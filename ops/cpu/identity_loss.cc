#include <algorithm>

#include "ops/cpu/loss.h"

namespace espalier {

void RegisterIdentityLossCpu(KernelRegistry& registry) {
  registry.Add("identity_loss", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([divisor = DivisorOf(spec.attributes)](const KernelArgs& args) {
      const float* x = args.inputs[0].as<float>();
      const double sum = BlockedSum(args.inputs[0].num_elements(), kParallelGrain,
                                    [&](int64_t begin, int64_t end) {
                                      double part = 0;
                                      for (int64_t i = begin; i < end; i += kSumBlock) {
                                        part += SumBlock(x + i, std::min(kSumBlock, end - i));
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
      const float value = static_cast<float>(*args.inputs[0].as<float>() / divisor);
      ParallelFor(dx.num_elements(), 1, [&](int64_t begin, int64_t end) {
        std::fill(dx.as<float>() + begin, dx.as<float>() + end, value);
      });
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
