#include "ops/cpu/integer_division.h"

namespace espalier {
namespace {

struct Divide {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return a / b;
    } else {
      return Quotient(a, b);
    }
  }
};

}  // namespace

void RegisterDivideCpu(KernelRegistry& registry) {
  registry.Add("divide", ViaF32([](const KernelSpec&, std::string*) {
                 return MakeKernel([](const KernelArgs& args) {
                   KernelStatus status = CheckDivisor("divide", args);
                   if (!status.ok()) return status;
                   return RunBinary<Takes::kNumbers>("divide", Divide(), args);
                 });
               }));
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "divide", [](float dy, float, float b) { return dy / b; },
      [](float dy, float a, float b) { return -dy * (a / b) / b; });
}

}  // namespace espalier
