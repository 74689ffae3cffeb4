#include "ops/cuda/top_k.h"

namespace espalier {

void RegisterSortCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("sort", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    const std::shared_ptr<TopKSort> sort = TopKSort::MakeWhole(spec, refusal);
    if (sort == nullptr) return nullptr;
    return MakeKernel(
        [sort](const KernelArgs& args) {
          return sort->Run(args.inputs[0], args.outputs[0], args.outputs[1], args);
        },
        sort->workspace_bytes());
  });
  AddTopKGradient(registry, "sort_grad");
}

}  // namespace espalier
