#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace {

KernelStatus Copy(const TensorView& to, const TensorView& from, void* stream, const char* op) {
  if (!to.present() || to.spec.bytes() == 0) return KernelStatus::Ok();
  return CudaStatus(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.spec.bytes()),
                                    cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
                    op);
}

}  // namespace

void RegisterCacheCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("cache", [](const KernelSpec& spec, std::string*) -> std::unique_ptr<Kernel> {
    return MakeKernel([cached = spec.attributes.Bool("use_cached")](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &state = args.inputs[1];
      if (args.training) ESPALIER_KERNEL_RETURN_IF_ERROR(Copy(state, x, args.stream, "cache"));
      const bool from_state = cached && !args.training;
      return Copy(args.outputs[0], from_state ? state : x, args.stream, "cache");
    });
  });
  registry.Add("cache_grad", [](const KernelSpec&, std::string*) -> std::unique_ptr<Kernel> {
    return MakeKernel([](const KernelArgs& args) {
      return Copy(args.outputs[0], args.inputs[0], args.stream, "cache_grad");
    });
  });
}

}  // namespace espalier
