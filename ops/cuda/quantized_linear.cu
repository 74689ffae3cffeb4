// quantized_linear with one matrix, or with several that share x.
#include <algorithm>

#include "ops/cuda/gemm/mixed_input_gemm.h"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {
namespace cuda_quantized_linear {

GemmWeightFormat KindOf(int bits, DType dtype) {
  if (bits == 16) return dtype == DType::kF16 ? GemmWeightFormat::kF16 : GemmWeightFormat::kBF16;
  return bits == 8 ? GemmWeightFormat::kPacked8 : GemmWeightFormat::kPacked4;
}

std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
  const int bits = static_cast<int>(spec.attributes.Int("bits"));
  const DType dtype = spec.inputs[1].dtype;
  if (bits == 16 && !TakesType(dtype, {DType::kBF16, DType::kF16}, refusal)) return nullptr;
  const size_t each = spec.inputs.size() / spec.outputs.size();
  const int64_t in = spec.inputs[0].dims.back();
  for (size_t i = 0; i < spec.outputs.size() && bits != 16; ++i) {
    const PackedWeights shape{bits, spec.outputs[i].dims.back(), in};
    if (spec.inputs[i * each + 1].dims != Dims{shape.blocks(), shape.block_bytes()}) {
      *refusal =
          "packed weights can be cut into blocks of 16 outputs and between groups of 32 inputs "
          "only";
      return nullptr;
    }
  }
  const GemmWeightFormat kind = KindOf(bits, dtype);
  const Activation activation = ActivationOf(spec.attributes);
  return MakeKernel(
      [kind, activation](const KernelArgs& args) {
        return RunMixedInputGemm("quantized_linear", kind, activation, args);
      },
      MixedInputGemmWorkspace(kind, RowsOf(spec.inputs[0].dims), in));
}

}  // namespace cuda_quantized_linear

void RegisterQuantizedLinearCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_quantized_linear;
  registry.Add("quantized_linear", Make);
  registry.SupportsHorizontalFusion("quantized_linear", {"out", "source"});
}

}  // namespace espalier
