#include <algorithm>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace {

double SumSquaresBlock(const float* x, int64_t n) {
  return SumTerms(x, n, [](float v) { return v * v; });
}

KernelStatus Run(const KernelArgs& args) {
  const float* x = args.inputs[0].as<float>();
  const double sum =
      BlockedSum(args.inputs[0].num_elements(), kParallelGrain, [x](int64_t begin, int64_t end) {
        double part = 0;
        for (int64_t i = begin; i < end; i += kSumBlock) {
          part += SumSquaresBlock(x + i, std::min(kSumBlock, end - i));
        }
        return part;
      });
  *args.outputs[0].as<float>() = static_cast<float>(sum);
  return KernelStatus::Ok();
}

}  // namespace

void RegisterSumSquaresCpu(KernelRegistry& registry) {
  registry.Add("sum_squares",
               ViaF32([](const KernelSpec&, std::string*) { return MakeKernel(Run); }));
}

}  // namespace espalier
