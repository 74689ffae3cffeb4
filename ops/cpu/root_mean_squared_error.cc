#include "ops/cpu/loss.h"

namespace espalier {

void RegisterRootMeanSquaredErrorCpu(KernelRegistry& registry) {
  // The mean: its root is taken where it is reported.
  registry.Add("root_mean_squared_error", [](const KernelSpec& spec, std::string*) {
    return ElementLoss([](float a, float b) { return (a - b) * (a - b); },
                       DivisorOf(spec.attributes));
  });
}

}  // namespace espalier
