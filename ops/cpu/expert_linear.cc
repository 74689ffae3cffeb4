// expert_linear and quantized_expert_linear: grouped GEMM of a mixture of experts. Rows are
// gathered by expert, so that each expert's weights are read once for all of its rows.
// Batch-invariant by BatchInvariantLinear and QuantizedGemm.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/batch_invariant_linear.h"
#include "ops/cpu/gemm/group_rows.h"
#include "ops/cpu/gemm/quantized_gemm.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

// The experts' matrices, in the format in which they are stored.
class ExpertMatrices {
 public:
  struct Rows {
    const RowsByGroup& groups;  // by expert
    int64_t experts, count, in, out;
    const float* x;  // [count, in], in the groups' order
    float* y;        // [count, out]
  };

  virtual ~ExpertMatrices() = default;
  // y = each row times the matrix of its expert.
  virtual void Multiply(const TensorView& weight, const Rows& rows, void* workspace) = 0;
};

// f32, bf16 or f16.
class PlainMatrices : public ExpertMatrices {
 public:
  explicit PlainMatrices(DType dtype) : dtype_(dtype) {}

  void Multiply(const TensorView& weight, const Rows& rows, void*) override {
    const int64_t bytes = rows.out * rows.in * static_cast<int64_t>(SizeOf(dtype_));
    for (int64_t e = 0; e < rows.experts; ++e) {
      const int64_t begin = rows.groups.begin(e), end = rows.groups.end(e);
      if (begin == end) continue;
      BatchInvariantLinear({DType::kF32, end - begin, rows.in, rows.out, rows.x + begin * rows.in,
                            static_cast<const char*>(weight.data) + e * bytes, nullptr,
                            rows.y + begin * rows.out, dtype_});
    }
  }

 private:
  const DType dtype_;
};

// 8 or 4 bits.
class PackedMatrices : public ExpertMatrices {
 public:
  PackedMatrices(const PackedWeights& shape, int64_t most_rows, WorkspaceLayout* layout)
      : shape_(shape) {
    rounded_ = layout->Add(static_cast<size_t>(QuantizedRows::Bytes(most_rows, shape.groups())));
  }

  void Multiply(const TensorView& weight, const Rows& rows, void* workspace) override {
    const QuantizedRows all =
        QuantizedRows::At(WorkspaceAt<char>(workspace, rounded_), rows.count, shape_.groups());
    if (all.rows == 0) return;
    QuantizeRows(BestQuantizedIsa(), rows.x, rows.in, all);
    chosen_.clear();
    for (int64_t e = 0; e < rows.experts; ++e) {
      if (rows.groups.begin(e) < rows.groups.end(e)) chosen_.push_back(e);
    }
    // The blocks of all chosen experts form one range, so that even a few rows occupy all threads.
    const int64_t blocks = shape_.blocks();
    const int64_t chosen = static_cast<int64_t>(chosen_.size());
    ParallelRanges(chosen * blocks, kPackOutputs * rows.in * (3 + rows.count / chosen) / 8,
                   [&](int64_t begin, int64_t end) {
                     while (begin < end) {
                       const int64_t first = begin % blocks;
                       const int64_t last = std::min(blocks, first + end - begin);
                       One(chosen_[static_cast<size_t>(begin / blocks)], first, last, weight, rows,
                           all);
                       begin += last - first;
                     }
                   });
  }

 private:
  // Blocks [first, last) of an expert.
  void One(int64_t expert, int64_t first, int64_t last, const TensorView& weight, const Rows& rows,
           const QuantizedRows& all) const {
    const int64_t begin = rows.groups.begin(expert);
    const QuantizedRows own = all.Part(begin, rows.groups.end(expert));
    QuantizedGemm(BestQuantizedIsa(), shape_,
                  weight.as<uint8_t>() + expert * shape_.blocks() * shape_.block_bytes(), own,
                  first, last, rows.y + begin * rows.out);
  }

  const PackedWeights shape_;
  size_t rounded_ = 0;
  std::vector<int64_t> chosen_;
};

class ExpertLinear : public Kernel {
 public:
  // `bits` of a weight: 32, 16, 8 or 4.
  ExpertLinear(const KernelSpec& spec, int bits) : op_(spec.op) {
    const int64_t choices = NumElements(spec.inputs[2].dims);
    const int64_t in = spec.inputs[0].dims.back(), out = spec.outputs[0].dims.back();
    gathered_ = layout_.Add(choices * in * sizeof(float));
    products_ = layout_.Add(choices * out * sizeof(float));
    if (bits >= 16) {
      matrices_ = std::make_unique<PlainMatrices>(bits == 16 ? spec.inputs[1].dtype : DType::kF32);
    } else {
      matrices_ = std::make_unique<PackedMatrices>(PackedWeights{bits, out, in}, choices, &layout_);
    }
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &x = args.inputs[0], &weight = args.inputs[1], &y = args.outputs[0];
    const int64_t experts = weight.dims()[0], out = y.dims().back(), in = x.dims().back();
    const int64_t choices = args.inputs[2].num_elements(), k = args.inputs[2].dims()[1];
    const int32_t* const expert = args.inputs[2].as<const int32_t>();
    if (const int64_t bad = groups_.Sort(expert, choices, 0, experts - 1); bad >= 0) {
      return KernelStatus::Error(op_ + ": assign holds " + std::to_string(expert[bad]) + " at " +
                                 std::to_string(bad) + ", there are " + std::to_string(experts) +
                                 " experts");
    }
    const std::vector<int64_t>& order = groups_.order();
    const int64_t rows_per_x = x.dims().size() == 3 ? 1 : k;  // choices that read one row of x
    float* gathered = WorkspaceAt(args.workspace, gathered_);
    float* products = WorkspaceAt(args.workspace, products_);
    ParallelRanges(choices, in, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(gathered + i * in, x.as<float>() + order[i] / rows_per_x * in,
                    in * sizeof(float));
      }
    });
    matrices_->Multiply(weight, {groups_, experts, choices, in, out, gathered, products},
                        args.workspace);
    const bool sums = args.inputs.size() > 3 && args.inputs[3].present();
    const float* gates = sums ? args.inputs[3].as<float>() : nullptr;
    if (!sums) {
      ParallelRanges(choices, out, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(y.as<float>() + order[i] * out, products + i * out, out * sizeof(float));
        }
      });
      return KernelStatus::Ok();
    }
    place_.resize(static_cast<size_t>(choices));
    for (int64_t i = 0; i < choices; ++i) place_[order[i]] = i;
    ParallelRanges(y.dims()[0], k * out, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        float* to = y.as<float>() + t * out;
        std::fill_n(to, out, 0.0f);
        for (int64_t j = t * k; j < (t + 1) * k; ++j) {
          const float* product = products + place_[j] * out;
          for (int64_t o = 0; o < out; ++o) to[o] += gates[j] * product[o];
        }
      }
    });
    return KernelStatus::Ok();
  }

 private:
  const std::string op_;
  WorkspaceLayout layout_;
  std::unique_ptr<ExpertMatrices> matrices_;
  size_t gathered_ = 0, products_ = 0;
  RowsByGroup groups_;          // choices by expert
  std::vector<int64_t> place_;  // of a choice in their order
};

}  // namespace

void RegisterExpertLinearCpu(KernelRegistry& registry) {
  registry.Add("expert_linear", ViaF32([](const KernelSpec& spec, std::string*) {
                 return std::make_unique<ExpertLinear>(spec, 32);
               }));
  registry.Add(
      "quantized_expert_linear",
      [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        const int bits = static_cast<int>(spec.attributes.Int("bits"));
        const PackedWeights shape{bits, spec.outputs[0].dims.back(), spec.inputs[0].dims.back()};
        const Dims& weight = spec.inputs[1].dims;
        if (bits < 16 && (weight[1] != shape.blocks() || weight[2] != shape.block_bytes())) {
          *refusal = "packed weights can be cut into blocks of 16 outputs only";
          return nullptr;
        }
        return std::make_unique<ExpertLinear>(spec, bits);
      });
}

}  // namespace espalier
