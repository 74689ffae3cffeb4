#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/top_k.h"

namespace espalier {

void RegisterArgTopKCpu(KernelRegistry& registry) {
  registry.Add("arg_top_k",
               ViaF32([](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!FitsTopK(spec, refusal)) return nullptr;
                 const Selection wanted = Selection::OfTopK(spec.attributes);
                 return MakeKernel([wanted](const KernelArgs& args) {
                   return RunTopK<int32_t>(wanted, args.inputs[0], TensorView(), args.outputs[0]);
                 });
               }));
}

}  // namespace espalier
