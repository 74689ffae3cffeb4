#include "ops/cpu/loss.h"

namespace espalier {

void RegisterMeanSquaredErrorCpu(KernelRegistry& registry) {
  registry.Add("mean_squared_error", [](const KernelSpec& spec, std::string*) {
    return ElementLoss([](float a, float b) { return (a - b) * (a - b); },
                       DivisorOf(spec.attributes));
  });
  registry.Add("mean_squared_error_grad", [](const KernelSpec& spec, std::string*) {
    return ElementLossGradient([](float a, float b) { return a - b; },
                               [](float a, float b) { return b - a; },
                               DivisorOf(spec.attributes) / 2.0);
  });
}

}  // namespace espalier
