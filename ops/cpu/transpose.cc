#include "ops/cpu/layout/strided.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

// Dimension d of y is dimension perm[d] of x.
void Permute(const TensorView& x, const std::vector<int64_t>& perm, const TensorView& y) {
  const Dims dense = DenseStrides(x.dims());
  Dims strides;
  for (int64_t p : perm) strides.push_back(dense[p]);
  CopyStrided(y.dims(), SizeOf(y.dtype()), x.data, strides, y.data, DenseStrides(y.dims()));
}

}  // namespace

void RegisterTransposeCpu(KernelRegistry& registry) {
  registry.Add("transpose", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([perm = spec.attributes.Ints("perm")](const KernelArgs& args) {
      Permute(args.inputs[0], perm, args.outputs[0]);
      return KernelStatus::Ok();
    });
  });
  registry.Add("transpose_grad", [](const KernelSpec& spec, std::string*) {
    const std::vector<int64_t> perm = spec.attributes.Ints("perm");
    std::vector<int64_t> inverse(perm.size());
    for (size_t d = 0; d < perm.size(); ++d) inverse[perm[d]] = static_cast<int64_t>(d);
    return MakeKernel([inverse](const KernelArgs& args) {
      Permute(args.inputs[0], inverse, args.outputs[0]);
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
