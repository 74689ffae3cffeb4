// Rows are gathered by expert, so that each expert's weights are read once for all rows that chose
// it; StableLinear makes every row's bits its own.
#include <algorithm>
#include <cstring>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_groups.h"
#include "ops/cpu/stable_linear.h"
#include "ops/cpu/workspace.h"

namespace espalier {
namespace {

class ExpertLinear : public Kernel {
 public:
  explicit ExpertLinear(const KernelSpec& spec) {
    const int64_t choices = NumElements(spec.inputs[2].dims);
    const Dims& weight = spec.inputs[1].dims;
    gathered_ = layout_.Add(choices * weight[2] * sizeof(float));
    products_ = layout_.Add(choices * weight[1] * sizeof(float));
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &x = args.inputs[0], &weight = args.inputs[1], &y = args.outputs[0];
    const int64_t experts = weight.dims()[0], out = weight.dims()[1], in = weight.dims()[2];
    const int64_t choices = args.inputs[2].num_elements(), k = args.inputs[2].dims()[1];
    const int32_t* const expert = args.inputs[2].as<const int32_t>();
    if (const int64_t bad = groups_.Sort(expert, choices, 0, experts - 1); bad >= 0) {
      return KernelStatus::Error("expert_linear: assign holds " + std::to_string(expert[bad]) +
                                 " at " + std::to_string(bad) + ", there are " +
                                 std::to_string(experts) + " experts");
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
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t begin = groups_.begin(e);
      StableLinear({DType::kF32, groups_.end(e) - begin, in, out, gathered + begin * in,
                    weight.as<float>() + e * out * in, nullptr, products + begin * out});
    }
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
  WorkspaceLayout layout_;
  size_t gathered_ = 0, products_ = 0;
  RowGroups groups_;            // choices by expert
  std::vector<int64_t> place_;  // of a choice in their order
};

}  // namespace

void RegisterExpertLinearCpu(KernelRegistry& registry) {
  registry.Add("expert_linear", ViaF32([](const KernelSpec& spec, std::string*) {
                 return std::make_unique<ExpertLinear>(spec);
               }));
}

}  // namespace espalier
