#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"

namespace espalier {
namespace {

// result dimension d is dimension perm[d] of `from`; the gradient runs it with the inverse.
KernelStatus Permute(const TensorView& from, const TensorView& to, const std::vector<int64_t>& perm,
                     void* stream, const char* op) {
  if (!to.present()) return KernelStatus::Ok();
  const Dims strides = DenseStrides(from.dims());
  StridedBlock block{to.dtype(), from.data, to.data, to.dims(), {}, DenseStrides(to.dims())};
  for (int64_t p : perm) block.source_strides.push_back(strides[p]);
  return CopyStrided(block, static_cast<cudaStream_t>(stream), op);
}

}  // namespace

void RegisterTransposeCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("transpose", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([perm = spec.attributes.Ints("perm")](const KernelArgs& args) {
      return Permute(args.inputs[0], args.outputs[0], perm, args.stream, "transpose");
    });
  });
  registry.Add("transpose_grad", [](const KernelSpec& spec, std::string*) {
    const std::vector<int64_t> perm = spec.attributes.Ints("perm");
    std::vector<int64_t> inverse(perm.size());
    for (size_t d = 0; d < perm.size(); ++d) inverse[perm[d]] = static_cast<int64_t>(d);
    return MakeKernel([inverse](const KernelArgs& args) {
      return Permute(args.inputs[0], args.outputs[0], inverse, args.stream, "transpose_grad");
    });
  });
}

}  // namespace espalier
