// multi_head_attention.
#include "ops/cpu/multi_head_attention.h"

#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace multi_head_attention {
namespace {

class Forward : public AttentionKernel {
 public:
  static std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
    if (spec.batch_invariant) {
      *refusal = "oneDNN's order of summation depends on the number of rows";
      return nullptr;
    }
    auto kernel = std::make_unique<Forward>(Describe(spec, kBiasK));
    return kernel->Prepare(spec, refusal) ? std::move(kernel) : nullptr;
  }
  explicit Forward(const Problem& p) : AttentionKernel(p) {}

  KernelStatus Run(const KernelArgs& args) override {
    const Problem& p = p_;
    std::string error = Project(args, kBiasK);
    for (int64_t b = 0; b < p.batch && error.empty(); ++b) {
      error = Probabilities(args, kMask, b);
      if (!error.empty()) break;
      error = context_product_->Run(Weights(args), At(args, v_) + b * p.all_columns() * p.value(),
                                    nullptr, At(args, context_) + b * p.rows * p.value(),
                                    Scratch(args));
    }
    if (!error.empty()) return KernelStatus{error};
    return KernelStatus{out_product_->Run(At(args, context_), FloatsAt(args, kWo),
                                          FloatsAt(args, kBo), args.outputs[0].as<float>(),
                                          Scratch(args))};
  }

 private:
  bool Prepare(const KernelSpec& spec, std::string* refusal) {
    const Problem& p = p_;
    const MatrixLayout values = {p.value_dim, p.value(), 1};
    const bool made =
        MakeProbabilities(spec, refusal) &&
        products_.Make(PerHead(p, p.rows, p.value_dim, p.all_columns(),
                               {p.rows * p.all_columns(), p.all_columns(), 1}, values, values),
                       &context_product_, refusal) &&
        products_.Make(Projection(p.batch * p.rows, p.out, p.value(), Has(spec.inputs, kBo)),
                       &out_product_, refusal);
    if (!made) return false;
    context_ = AddFloats(p.batch * p.rows * p.value());
    scratch_ = layout_.Add(products_.bytes());
    return true;
  }

  std::shared_ptr<Gemm> context_product_, out_product_;
  size_t context_ = 0;
};

}  // namespace
}  // namespace multi_head_attention

void RegisterMultiHeadAttentionCpu(KernelRegistry& registry) {
  registry.Add("multi_head_attention", ViaF32(multi_head_attention::Forward::Make));
}

}  // namespace espalier
