#include <span>
#include <utility>
#include <vector>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/linear_args.h"
#include "ops/cpu/gemm/quantized_gemm.h"
#include "ops/cpu/layout/rows.h"
#include "ops/cpu/simd/activation.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

void Activate(Activation activation, std::span<const TensorView> outputs) {
  if (activation == Activation::kNone) return;
  for (const TensorView& y : outputs) Activate(activation, y.as<float>(), y.num_elements());
}

// y += bias, row by row.
void AddBias(const float* bias, const TensorView& y) {
  const int64_t out = y.dims().back(), rows = RowsOf(y.dims());
  ParallelFor(rows, out, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const row = y.as<float>() + r * out;
      for (int64_t i = 0; i < out; ++i) row[i] += bias[i];
    }
  });
}

// Weights in bf16 or f16, x in f32.
std::unique_ptr<Kernel> MakeNarrow(const KernelSpec& spec) {
  return MakeKernel([activation = ActivationOf(spec.attributes)](const KernelArgs& args) {
    BatchInvariantLinear(ProductsOf(args));
    Activate(activation, args.outputs);
    return KernelStatus::Ok();
  });
}

// Several matrices share one x.
class Packed : public Kernel {
 public:
  Packed(const KernelSpec& spec, std::vector<PackedWeights> shapes)
      : activation_(ActivationOf(spec.attributes)), shapes_(std::move(shapes)) {
    rounded_ = layout_.Add(static_cast<size_t>(
        QuantizedRows::Bytes(RowsOf(spec.inputs[0].dims), shapes_[0].groups())));
    for (const PackedWeights& shape : shapes_) blocks_.push_back(shape.blocks());
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView& x = args.inputs[0];
    const size_t each = args.inputs.size() / shapes_.size();
    const QuantizedRows to = QuantizedRows::At(WorkspaceAt<char>(args.workspace, rounded_),
                                               RowsOf(x.dims()), shapes_[0].groups());
    if (to.rows == 0) return KernelStatus::Ok();
    QuantizeRows(BestQuantizedIsa(), x.as<float>(), shapes_[0].in, to);
    ParallelArrays(blocks_, kPackOutputs * shapes_[0].in * (3 + to.rows) / 8,
                   [&](size_t which, int64_t begin, int64_t end) {
                     QuantizedGemm(BestQuantizedIsa(), shapes_[which],
                                   args.inputs[which * each + 1].as<uint8_t>(), to, begin, end,
                                   args.outputs[which].as<float>());
                   });
    for (size_t i = 0; i < shapes_.size(); ++i) {
      if (each < 3 || !args.inputs[i * each + 2].present()) continue;
      AddBias(args.inputs[i * each + 2].as<float>(), args.outputs[i]);
    }
    Activate(activation_, args.outputs);
    return KernelStatus::Ok();
  }

 private:
  const Activation activation_;
  const std::vector<PackedWeights> shapes_;
  std::vector<int64_t> blocks_;
  WorkspaceLayout layout_;
  size_t rounded_ = 0;
};

std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
  const int bits = static_cast<int>(spec.attributes.Int("bits"));
  if (bits == 16) return MakeNarrow(spec);
  const size_t each = spec.inputs.size() / spec.outputs.size();
  std::vector<PackedWeights> shapes;
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    const PackedWeights shape{bits, spec.outputs[i].dims.back(), spec.inputs[0].dims.back()};
    if (spec.inputs[i * each + 1].dims != Dims{shape.blocks(), shape.block_bytes()}) {
      *refusal =
          "packed weights can be cut into blocks of 16 outputs and between groups of 32 inputs "
          "only";
      return nullptr;
    }
    shapes.push_back(shape);
  }
  return std::make_unique<Packed>(spec, std::move(shapes));
}

}  // namespace

void RegisterQuantizedLinearCpu(KernelRegistry& registry) {
  registry.Add("quantized_linear", Make);
  registry.SupportsHorizontalFusion("quantized_linear", {"out", "source"});
}

}  // namespace espalier
