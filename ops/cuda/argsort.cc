#include "ops/cuda/top_k.h"

namespace espalier {

void RegisterArgsortCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("argsort",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 const std::shared_ptr<TopKSort> sort = TopKSort::MakeWhole(spec, refusal);
                 if (sort == nullptr) return nullptr;
                 return MakeKernel(
                     [sort](const KernelArgs& args) {
                       return sort->Run(args.inputs[0], TensorView(), args.outputs[0], args);
                     },
                     sort->workspace_bytes());
               });
}

}  // namespace espalier
