#include <cstring>

#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([cached = spec.attributes.Bool("use_cached")](const KernelArgs& args) {
    const TensorView &x = args.inputs[0], &state = args.inputs[1], &y = args.outputs[0];
    const size_t bytes = static_cast<size_t>(x.spec.bytes());
    if (args.training) std::memcpy(state.data, x.data, bytes);
    const bool from_state = cached && !args.training;
    if (y.present()) std::memcpy(y.data, from_state ? state.data : x.data, bytes);
    return KernelStatus::Ok();
  });
}

std::unique_ptr<Kernel> MakeBackward(const KernelSpec&, std::string*) {
  return MakeKernel([](const KernelArgs& args) {
    const TensorView& dx = args.outputs[0];
    if (dx.present()) {
      std::memcpy(dx.data, args.inputs[0].data, static_cast<size_t>(dx.spec.bytes()));
    }
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterCacheCpu(KernelRegistry& registry) {
  registry.Add("cache", MakeForward);
  registry.Add("cache_grad", MakeBackward);
}

}  // namespace espalier
