#include "ops/cpu/loss.h"

namespace espalier {
namespace {

// Zero where they are equal, as PyTorch has it.
float SignOf(float x) { return static_cast<float>((x > 0.0f) - (x < 0.0f)); }

}  // namespace

void RegisterMeanAbsoluteErrorCpu(KernelRegistry& registry) {
  registry.Add("mean_absolute_error", [](const KernelSpec& spec, std::string*) {
    return ElementLoss([](float a, float b) { return __builtin_fabsf(a - b); },
                       DivisorOf(spec.attributes));
  });
  registry.Add("mean_absolute_error_grad", [](const KernelSpec& spec, std::string*) {
    return ElementLossGradient([](float a, float b) { return SignOf(a - b); },
                               [](float a, float b) { return SignOf(b - a); },
                               DivisorOf(spec.attributes));
  });
}

}  // namespace espalier
