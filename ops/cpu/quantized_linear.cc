#include "ops/cpu/activation.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/quantized_dot.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/stable_linear.h"
#include "ops/cpu/workspace.h"

namespace espalier {
namespace {

void Finish(const KernelArgs& args, Activation activation, bool bias) {
  const TensorView& y = args.outputs[0];
  const int64_t out = y.dims().back(), rows = RowsOf(y.dims());
  if (bias && args.inputs.size() > 2 && args.inputs[2].present()) {
    const float* const add = args.inputs[2].as<float>();
    ParallelFor(rows, out, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* const row = y.as<float>() + r * out;
        for (int64_t i = 0; i < out; ++i) row[i] += add[i];
      }
    });
  }
  if (activation != Activation::kNone) Activate(activation, y.as<float>(), y.num_elements());
}

// Weights of bf16, x in f32.
std::unique_ptr<Kernel> MakeNarrow(const KernelSpec& spec) {
  return MakeKernel([activation = ActivationOf(spec.attributes)](const KernelArgs& args) {
    const TensorView &x = args.inputs[0], &weight = args.inputs[1], &y = args.outputs[0];
    const bool bias = args.inputs.size() > 2 && args.inputs[2].present();
    StableLinear({DType::kF32, RowsOf(x.dims()), weight.dims()[1], weight.dims()[0], x.data,
                  weight.data, bias ? args.inputs[2].data : nullptr, y.data, DType::kBF16});
    Finish(args, activation, /*bias=*/false);
    return KernelStatus::Ok();
  });
}

std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
  const int bits = static_cast<int>(spec.attributes.Int("bits"));
  if (bits == 16) return MakeNarrow(spec);
  const TensorSpec &x = spec.inputs[0], &y = spec.outputs[0];
  const PackedWeights shape{bits, y.dims.back(), x.dims.back()};
  if (spec.inputs[1].dims != Dims{shape.blocks(), shape.block_bytes()}) {
    *refusal =
        "packed weights can be cut into blocks of 16 outputs and between groups of 32 inputs only";
    return nullptr;
  }
  const int64_t rows = RowsOf(x.dims), groups = shape.groups();
  WorkspaceLayout layout;
  const size_t rounded = layout.Add(static_cast<size_t>(QuantizedRows::Bytes(rows, groups)));
  return MakeKernel(
      [=, activation = ActivationOf(spec.attributes)](const KernelArgs& args) {
        const TensorView& x = args.inputs[0];
        const QuantizedRows to =
            QuantizedRows::At(WorkspaceAt<char>(args.workspace, rounded), RowsOf(x.dims()), groups);
        if (to.rows == 0) return KernelStatus::Ok();
        QuantizeRows(BestQuantizedIsa(), x.as<float>(), shape.in, to);
        ParallelRanges(shape.blocks(), kPackOutputs * shape.in * (3 + to.rows) / 8,
                       [&](int64_t begin, int64_t end) {
                         QuantizedProduct(BestQuantizedIsa(), shape, args.inputs[1].as<uint8_t>(),
                                          to, begin, end, args.outputs[0].as<float>());
                       });
        Finish(args, activation, /*bias=*/true);
        return KernelStatus::Ok();
      },
      layout.bytes());
}

}  // namespace

void RegisterQuantizedLinearCpu(KernelRegistry& registry) {
  registry.Add("quantized_linear", Make);
}

}  // namespace espalier
