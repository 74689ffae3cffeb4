#include <utility>
#include <vector>

#include "ops/cuda/convert.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace {

template <typename From, typename To>
struct ConvertElement {
  const From* from;
  To* to;
  __device__ void operator()(int64_t i) const { to[i] = FromFloat<To>(ToFloat(from[i])); }
};

KernelStatus ConvertFloats(const TensorView& from, const TensorView& to, cudaStream_t stream) {
  return DispatchFloat(from.dtype(), "convert", [&](auto source) {
    return DispatchFloat(to.dtype(), "convert", [&](auto target) {
      using From = typename decltype(source)::T;
      using To = typename decltype(target)::T;
      return ForEach(from.num_elements(), ConvertElement<From, To>{from.as<From>(), to.as<To>()},
                     stream, "convert");
    });
  });
}

// `inner` was created for `spec` with all floating-point operands except `mask` in `type`.
class ConvertingKernel : public Kernel {
 public:
  ConvertingKernel(std::unique_ptr<Kernel> inner, const KernelSpec& spec, DType type, int mask,
                   Results results)
      : inner_(std::move(inner)), type_(type), mask_(mask), results_(results) {
    inner_at_ = layout_.Add(inner_->workspace_bytes());
    for (size_t i = 0; i < spec.inputs.size(); ++i) {
      inputs_at_.push_back(static_cast<int>(i) == mask ? 0 : Reserve(spec.inputs[i]));
    }
    for (const TensorSpec& output : spec.outputs) {
      outputs_at_.push_back(results == Results::kOwnType ? 0 : Reserve(output));
    }
    inputs_.resize(spec.inputs.size());
    outputs_.resize(spec.outputs.size());
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = args.inputs[i];
      if (static_cast<int>(i) == mask_ || !Converts(inputs_[i])) continue;
      inputs_[i] = Elsewhere(args, inputs_[i], inputs_at_[i]);
      ESPALIER_KERNEL_RETURN_IF_ERROR(ConvertFloats(args.inputs[i], inputs_[i], StreamOf(args)));
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i] = args.outputs[i];
      if (ConvertsResult(i, args)) outputs_[i] = Elsewhere(args, outputs_[i], outputs_at_[i]);
    }
    KernelArgs inner_args = args;
    inner_args.inputs = inputs_;
    inner_args.outputs = outputs_;
    inner_args.workspace = WorkspaceAt(args, inner_at_);
    ESPALIER_KERNEL_RETURN_IF_ERROR(inner_->Run(inner_args));
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!ConvertsResult(i, args)) continue;
      ESPALIER_KERNEL_RETURN_IF_ERROR(ConvertFloats(outputs_[i], args.outputs[i], StreamOf(args)));
    }
    return KernelStatus::Ok();
  }

 private:
  size_t Reserve(const TensorSpec& spec) {
    if (!IsFloat(spec.dtype) || spec.dtype == type_) return 0;
    return layout_.Add(static_cast<size_t>(spec.num_elements()) * SizeOf(type_));
  }
  bool Converts(const TensorView& view) const {
    return view.present() && IsFloat(view.dtype()) && view.dtype() != type_;
  }
  bool ConvertsResult(size_t i, const KernelArgs& args) const {
    return results_ == Results::kConverted && Converts(args.outputs[i]);
  }
  TensorView Elsewhere(const KernelArgs& args, TensorView view, size_t at) const {
    view.data = WorkspaceAt(args, at);
    view.spec.dtype = type_;
    return view;
  }

  std::unique_ptr<Kernel> inner_;
  const DType type_;
  const int mask_;
  const Results results_;
  WorkspaceLayout layout_;
  size_t inner_at_ = 0;
  std::vector<size_t> inputs_at_, outputs_at_;
  std::vector<TensorView> inputs_, outputs_;
};

std::unique_ptr<Kernel> MakeIn(DType type, int mask, Results results, const KernelFactory& inner,
                               const KernelSpec& spec, std::string* refusal) {
  KernelSpec same = spec;
  for (size_t i = 0; i < same.inputs.size(); ++i) {
    if (static_cast<int>(i) != mask && IsFloat(same.inputs[i].dtype)) same.inputs[i].dtype = type;
  }
  for (TensorSpec& output : same.outputs) {
    if (IsFloat(output.dtype) && results == Results::kConverted) output.dtype = type;
  }
  std::unique_ptr<Kernel> kernel = inner(same, refusal);
  if (kernel == nullptr) return nullptr;
  return std::make_unique<ConvertingKernel>(std::move(kernel), spec, type, mask, results);
}

// The floating-point types among the operands, the mask left out.
struct Found {
  bool wide = false;
  DType narrow = DType::kInvalid;

  Found(const KernelSpec& spec, int mask) {
    for (size_t i = 0; i < spec.inputs.size(); ++i) {
      if (static_cast<int>(i) != mask) See(spec.inputs[i].dtype);
    }
    for (const TensorSpec& output : spec.outputs) See(output.dtype);
  }
  void See(DType type) {
    wide = wide || type == DType::kF32;
    if (IsNarrow(type)) narrow = type;
  }
};

}  // namespace

KernelFactory InNarrowest(KernelFactory inner, int mask, Results results) {
  return [inner = std::move(inner), mask, results](
             const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    const Found found(spec, mask);
    if (!found.wide || found.narrow == DType::kInvalid) return inner(spec, refusal);
    return MakeIn(found.narrow, mask, results, inner, spec, refusal);
  };
}

KernelFactory InF32(KernelFactory inner) {
  return [inner = std::move(inner)](const KernelSpec& spec,
                                    std::string* refusal) -> std::unique_ptr<Kernel> {
    if (Found(spec, -1).narrow == DType::kInvalid) return inner(spec, refusal);
    return MakeIn(DType::kF32, -1, Results::kConverted, inner, spec, refusal);
  };
}

}  // namespace espalier
