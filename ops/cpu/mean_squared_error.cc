#include <algorithm>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/sum.h"

namespace espalier {
namespace {

void Forward(const KernelArgs& args, double count) {
  const float* a = args.inputs[0].as<float>();
  const float* b = args.inputs[1].as<float>();
  const auto squared_distance = [](float a, float b) { return (a - b) * (a - b); };
  const double sum =
      BlockedSum(args.inputs[0].num_elements(), kParallelGrain, [&](int64_t begin, int64_t end) {
        double part = 0;
        float buffer[kSumBlock];
        for (int64_t i = begin; i < end; i += kSumBlock) {
          const int64_t n = std::min(kSumBlock, end - i);
          MapBinaryRow(squared_distance, a + i, 1, b + i, 1, buffer, n);
          part += SumBlock(buffer, n);
        }
        return part;
      });
  *args.outputs[0].as<float>() = static_cast<float>(sum / count);
}

void Backward(const KernelArgs& args, double count) {
  const float* prediction = args.inputs[0].as<float>();
  const float* target = args.inputs[1].as<float>();
  const float factor = static_cast<float>(2.0 * *args.inputs[2].as<float>() / count);
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    if (!args.outputs[i].present()) continue;
    const float sign = i == 0 ? factor : -factor;
    MapBinary([sign](float a, float b) { return sign * (a - b); }, prediction, target,
              args.outputs[i].as<float>(), args.outputs[i].num_elements());
  }
}

}  // namespace

void RegisterMeanSquaredErrorCpu(KernelRegistry& registry) {
  registry.Add("mean_squared_error", [](const KernelSpec& spec, std::string*) {
    return MakeKernel(
        [count = static_cast<double>(spec.attributes.Int("count"))](const KernelArgs& args) {
          Forward(args, count);
          return KernelStatus::Ok();
        });
  });
  registry.Add("mean_squared_error_grad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel(
        [count = static_cast<double>(spec.attributes.Int("count"))](const KernelArgs& args) {
          Backward(args, count);
          return KernelStatus::Ok();
        });
  });
}

}  // namespace espalier
