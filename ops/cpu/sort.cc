#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/top_k.h"

namespace espalier {

void RegisterSortCpu(KernelRegistry& registry) {
  registry.Add(
      "sort", ViaF32([](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!FitsTopK(spec, refusal)) return nullptr;
        return MakeKernel([wanted = Selection::OfSort(spec.attributes)](const KernelArgs& args) {
          return RunTopK<int64_t>(wanted, args.inputs[0], args.outputs[0], args.outputs[1]);
        });
      }));
  // places, d_values (indices have no gradient) -> dx
  registry.Add("sort_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel([axis = spec.attributes.Int("axis")](const KernelArgs& args) {
                   return RunTopKGradient(axis, args.inputs[0], args.inputs[1], args.outputs[0]);
                 });
               }));
}

}  // namespace espalier
