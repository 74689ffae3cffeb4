#include "ops/cpu/top_k.h"

#include <cstring>

#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace {

// places, d_values (indices have no gradient) -> dx
KernelStatus Gradient(const Attributes& attributes, const TensorView& places, const TensorView& dy,
                      const TensorView& dx) {
  std::memset(dx.data, 0, dx.spec.bytes());
  if (!dy.present() || dy.num_elements() == 0) return KernelStatus::Ok();
  const AxisLines lines(dx.dims(), attributes.Int("axis"));
  const int64_t k = attributes.Int("k");
  const int64_t* at = places.as<int64_t>();
  const float* from = dy.as<float>();
  float* to = dx.as<float>();
  ParallelFor(dy.num_elements(), 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t line = i / (k * lines.inner) * lines.inner + i % lines.inner;
      to[lines.Start(line) + at[i] * lines.inner] = from[i];
    }
  });
  return KernelStatus::Ok();
}

}  // namespace

void RegisterTopKCpu(KernelRegistry& registry) {
  registry.Add(
      "top_k", ViaF32([](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!FitsTopK(spec, refusal)) return nullptr;
        return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
          return RunTopK<int64_t>(attributes, args.inputs[0], args.outputs[0], args.outputs[1]);
        });
      }));
  registry.Add("top_k_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
                   return Gradient(attributes, args.inputs[0], args.inputs[1], args.outputs[0]);
                 });
               }));
}

}  // namespace espalier
