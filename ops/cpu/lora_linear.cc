// lora_linear: grouped LoRA products (as SGMV, Punica). Rows are gathered by adapter, so that each
// adapter is read once for all of its rows. Batch-invariant by BatchInvariantLinear.
#include <algorithm>
#include <cstring>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/batch_invariant_linear.h"
#include "ops/cpu/gemm/group_rows.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

class LoraLinear : public Kernel {
 public:
  explicit LoraLinear(const KernelSpec& spec) {
    const int64_t rows = spec.inputs[0].dims[0];
    const Dims& b = spec.inputs[2].dims;
    gathered_ = layout_.Add(rows * spec.inputs[0].dims[1] * sizeof(float));
    narrow_ = layout_.Add(rows * b[2] * sizeof(float));
    products_ = layout_.Add(rows * b[1] * sizeof(float));
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &x = args.inputs[0], &a = args.inputs[1], &b = args.inputs[2];
    const TensorView &adapter = args.inputs[3], &y = args.outputs[0];
    const int64_t rows = x.dims()[0], in = x.dims()[1];
    const int64_t adapters = b.dims()[0], out = b.dims()[1], rank = b.dims()[2];
    const int32_t* const of_row = adapter.as<const int32_t>();
    if (const int64_t bad = groups_.Sort(of_row, rows, -1, adapters - 1); bad >= 0) {
      return KernelStatus::Error("lora_linear: adapter holds " + std::to_string(of_row[bad]) +
                                 " at " + std::to_string(bad) + ", expected -1 to " +
                                 std::to_string(adapters - 1));
    }
    float* const gathered = WorkspaceAt(args.workspace, gathered_);
    float* const narrow = WorkspaceAt(args.workspace, narrow_);
    float* const products = WorkspaceAt(args.workspace, products_);
    const std::vector<int64_t>& order = groups_.order();
    const int64_t none = groups_.end(-1);  // rows without an adapter come first
    const auto copy = [&](int64_t begin, int64_t end, int64_t size, const auto& row) {
      ParallelRanges(end - begin, size, [&](int64_t from, int64_t to) {
        for (int64_t i = begin + from; i < begin + to; ++i) row(i);
      });
    };
    copy(none, rows, in, [&](int64_t i) {
      std::memcpy(gathered + i * in, x.as<float>() + order[i] * in, in * sizeof(float));
    });
    for (int64_t n = 0; n < adapters; ++n) {
      const int64_t begin = groups_.begin(n), count = groups_.end(n) - begin;
      if (count == 0) continue;
      BatchInvariantLinear({DType::kF32, count, in, rank, gathered + begin * in,
                            a.as<float>() + n * rank * in, nullptr, narrow + begin * rank});
      BatchInvariantLinear({DType::kF32, count, rank, out, narrow + begin * rank,
                            b.as<float>() + n * out * rank, nullptr, products + begin * out});
    }
    copy(0, none, out, [&](int64_t i) { std::fill_n(y.as<float>() + order[i] * out, out, 0.0f); });
    copy(none, rows, out, [&](int64_t i) {
      std::memcpy(y.as<float>() + order[i] * out, products + i * out, out * sizeof(float));
    });
    return KernelStatus::Ok();
  }

 private:
  WorkspaceLayout layout_;
  size_t gathered_ = 0, narrow_ = 0, products_ = 0;
  RowsByGroup groups_;
};

}  // namespace

void RegisterLoraLinearCpu(KernelRegistry& registry) {
  registry.Add("lora_linear", ViaF32([](const KernelSpec& spec, std::string*) {
                 return std::make_unique<LoraLinear>(spec);
               }));
}

}  // namespace espalier
