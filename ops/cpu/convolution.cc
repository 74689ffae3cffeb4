#include "ops/cpu/convolution.h"

#include <algorithm>
#include <dnnl.hpp>
#include <unordered_map>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/onednn/post_ops.h"
#include "ops/cpu/simd/activation.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"
#include "ops/kernel/shard_padding.h"

namespace espalier {
namespace {

using dnnl::memory;

struct Problem {
  memory::dims x, weight, y, bias;
  memory::dims strides, dilations, pads_before, pads_after;
};

// Derives the number of groups from the shapes, so that it is also right for a shard.
Problem Describe(const Attributes& a, const Dims& x, const Dims& weight, const Dims& y) {
  Problem p;
  p.x = x;
  p.y = y;
  p.bias = {weight[0]};
  const int64_t groups = weight[1] > 0 ? x[1] / weight[1] : 1;
  p.weight = weight;
  if (groups > 1) {
    p.weight[0] /= groups;
    p.weight.insert(p.weight.begin(), groups);
  }
  const std::vector<int64_t> pads = a.Ints("pads");
  p.strides = a.Ints("strides");
  for (int64_t d : a.Ints("dilations")) p.dilations.push_back(d - 1);  // oneDNN counts from 0
  p.pads_before.assign(pads.begin(), pads.begin() + pads.size() / 2);
  p.pads_after.assign(pads.begin() + pads.size() / 2, pads.end());
  return p;
}

Problem DescribePart(const KernelSpec& spec, const TensorSpec& y) {
  const Dims& weight = spec.inputs[1].dims;
  return Describe(
      ShardAttributes(spec.attributes, spec.inputs[0], y, Dims(weight.begin() + 2, weight.end())),
      spec.inputs[0].dims, weight, y.dims);
}

memory::desc AnyLayout(const memory::dims& dims) {
  return {dims, memory::data_type::f32, memory::format_tag::any};
}

memory::desc Plain(const memory::dims& dims) {
  memory::dims strides(dims.size(), 1);
  for (size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
  return {dims, memory::data_type::f32, strides};
}

// One operand of a primitive: the plain tensor and, where the primitive wants another layout, a
// copy in the workspace.
class Operand {
 public:
  Operand() = default;
  Operand(const dnnl::engine& engine, const memory::dims& dims, const memory::desc& wanted,
          bool is_output, WorkspaceLayout* layout)
      : plain_(Plain(dims), engine, nullptr), is_output_(is_output) {
    if (wanted == plain_.get_desc()) return;
    offset_ = layout->Add(wanted.get_size());
    inner_ = memory(wanted, engine, nullptr);
    reorder_ = is_output ? dnnl::reorder(inner_, plain_) : dnnl::reorder(plain_, inner_);
  }

  memory& used() { return inner_ ? inner_ : plain_; }

  void Before(dnnl::stream& stream, void* data, void* workspace) {
    plain_.set_data_handle(data);
    if (!inner_) return;
    inner_.set_data_handle(static_cast<char*>(workspace) + offset_);
    if (!is_output_) reorder_.execute(stream, plain_, inner_);
  }

  void After(dnnl::stream& stream) {
    if (inner_ && is_output_) reorder_.execute(stream, inner_, plain_);
  }

 private:
  memory plain_, inner_;
  dnnl::reorder reorder_;
  bool is_output_ = false;
  size_t offset_ = 0;
};

// A primitive with its operands; Run takes their data in the order in which they were added.
class Convolution {
 public:
  template <typename PrimitiveDesc, typename Primitive>
  void Make(const dnnl::engine& engine, const PrimitiveDesc& chosen, Primitive primitive,
            WorkspaceLayout* layout) {
    engine_ = engine;
    stream_ = dnnl::stream(engine);
    primitive_ = std::move(primitive);
    scratch_bytes_ = chosen.scratchpad_desc().get_size();
    scratch_offset_ = layout->Add(scratch_bytes_);
    scratch_ = memory(chosen.scratchpad_desc(), engine, nullptr);
    arguments_ = {{DNNL_ARG_SCRATCHPAD, scratch_}};
  }

  void Add(int argument, const memory::dims& dims, const memory::desc& wanted, bool is_output,
           WorkspaceLayout* layout) {
    operands_.emplace_back(engine_, dims, wanted, is_output, layout);
    arguments_[argument] = operands_.back().used();
  }

  void Run(std::initializer_list<void*> data, void* workspace) {
    size_t i = 0;
    for (void* pointer : data) {
      if (i < operands_.size()) operands_[i++].Before(stream_, pointer, workspace);
    }
    if (scratch_bytes_ > 0) {
      scratch_.set_data_handle(static_cast<char*>(workspace) + scratch_offset_);
    }
    primitive_.execute(stream_, arguments_);
    for (Operand& operand : operands_) operand.After(stream_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  size_t scratch_bytes_ = 0, scratch_offset_ = 0;
  memory scratch_;
  std::vector<Operand> operands_;
  std::unordered_map<int, memory> arguments_;
};

dnnl::primitive_attr UserScratch(Activation activation = Activation::kNone) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post;
  AppendActivation(activation, &post);
  attributes.set_post_ops(post);
  return attributes;
}

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

dnnl::convolution_forward::primitive_desc ForwardDesc(const Problem& p, bool bias,
                                                      Activation activation,
                                                      const dnnl::engine& engine) {
  using dnnl::convolution_forward;
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  const memory::desc x = AnyLayout(p.x), w = AnyLayout(p.weight), y = AnyLayout(p.y);
  const convolution_forward::desc desc =
      bias ? convolution_forward::desc(kKind, kAlgorithm, x, w, Plain(p.bias), y, p.strides,
                                       p.dilations, p.pads_before, p.pads_after)
           : convolution_forward::desc(kKind, kAlgorithm, x, w, y, p.strides, p.dilations,
                                       p.pads_before, p.pads_after);
  return {desc, UserScratch(activation), engine};
}

// Makes `convolution` take x, weight, y and, if it has one, bias.
void MakeProduct(const Problem& p, bool bias, Activation activation, WorkspaceLayout* layout,
                 Convolution* convolution) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto chosen = ForwardDesc(p, bias, activation, engine);
  convolution->Make(engine, chosen, dnnl::convolution_forward(chosen), layout);
  convolution->Add(DNNL_ARG_SRC, p.x, chosen.src_desc(), false, layout);
  convolution->Add(DNNL_ARG_WEIGHTS, p.weight, chosen.weights_desc(), false, layout);
  convolution->Add(DNNL_ARG_DST, p.y, chosen.dst_desc(), true, layout);
  if (bias) convolution->Add(DNNL_ARG_BIAS, p.bias, chosen.bias_desc(), false, layout);
}

// Makes `convolution` take dy, weight and dx.
void MakeInputGradient(const Problem& p, WorkspaceLayout* layout, Convolution* convolution) {
  using dnnl::convolution_backward_data;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto hint = ForwardDesc(p, false, Activation::kNone, engine);
  const convolution_backward_data::primitive_desc chosen(
      convolution_backward_data::desc(kAlgorithm, AnyLayout(p.x), AnyLayout(p.weight),
                                      AnyLayout(p.y), p.strides, p.dilations, p.pads_before,
                                      p.pads_after),
      UserScratch(), engine, hint);
  convolution->Make(engine, chosen, convolution_backward_data(chosen), layout);
  convolution->Add(DNNL_ARG_DIFF_DST, p.y, chosen.diff_dst_desc(), false, layout);
  convolution->Add(DNNL_ARG_WEIGHTS, p.weight, chosen.weights_desc(), false, layout);
  convolution->Add(DNNL_ARG_DIFF_SRC, p.x, chosen.diff_src_desc(), true, layout);
}

// Makes `convolution` take x, dy, dweight and dbias.
void MakeWeightGradient(const Problem& p, WorkspaceLayout* layout, Convolution* convolution) {
  using dnnl::convolution_backward_weights;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto hint = ForwardDesc(p, true, Activation::kNone, engine);
  const convolution_backward_weights::primitive_desc chosen(
      convolution_backward_weights::desc(kAlgorithm, AnyLayout(p.x), AnyLayout(p.weight),
                                         Plain(p.bias), AnyLayout(p.y), p.strides, p.dilations,
                                         p.pads_before, p.pads_after),
      UserScratch(), engine, hint);
  convolution->Make(engine, chosen, convolution_backward_weights(chosen), layout);
  convolution->Add(DNNL_ARG_SRC, p.x, chosen.src_desc(), false, layout);
  convolution->Add(DNNL_ARG_DIFF_DST, p.y, chosen.diff_dst_desc(), false, layout);
  convolution->Add(DNNL_ARG_DIFF_WEIGHTS, p.weight, chosen.diff_weights_desc(), true, layout);
  convolution->Add(DNNL_ARG_DIFF_BIAS, p.bias, chosen.diff_bias_desc(), true, layout);
}

bool IsEmpty(const Problem& p) {
  for (const memory::dims* dims : {&p.x, &p.weight, &p.y}) {
    if (NumElements(*dims) == 0) return true;
  }
  return false;
}

bool Has(const std::vector<TensorSpec>& specs, size_t i) {
  return i < specs.size() && specs[i].dtype != DType::kInvalid;
}

float* DataAt(std::span<const TensorView> views, size_t i) {
  return i < views.size() ? views[i].as<float>() : nullptr;
}

void Zero(const TensorView& view) {
  if (view.present()) std::fill_n(view.as<float>(), view.num_elements(), 0.0f);
}

// y[n, c, ...] += bias[c]
void AddBias(const float* bias, const TensorView& y) {
  const int64_t channels = y.dims()[1], planes = y.dims()[0] * channels;
  const int64_t plane = planes > 0 ? y.num_elements() / planes : 0;
  ParallelRanges(planes, plane, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = y.as<float>() + i * plane;
      const float value = bias[i % channels];
      for (int64_t j = 0; j < plane; ++j) row[j] += value;
    }
  });
}

// sums[c] = sum of dy[n, c, ...]
void SumChannels(const TensorView& dy, float* sums) {
  const int64_t batch = dy.dims()[0], channels = dy.dims()[1];
  const int64_t plane = batch * channels > 0 ? dy.num_elements() / (batch * channels) : 0;
  ParallelRanges(channels, batch * plane, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sum = 0;
      for (int64_t n = 0; n < batch; ++n) {
        const float* row = dy.as<float>() + (n * channels + c) * plane;
        for (int64_t i = 0; i < plane; i += kSumBlock) {
          sum += SumBlock(row + i, std::min(kSumBlock, plane - i));
        }
      }
      sums[c] = static_cast<float>(sum);
    }
  });
}

// Calls run, which may throw oneDNN's errors.
template <typename F>
KernelStatus Caught(const F& run) {
  try {
    run();
    return KernelStatus::Ok();
  } catch (const dnnl::error& error) {
    return KernelStatus::Error(std::string("convolution: oneDNN failed: ") + error.what());
  }
}

// x, weight, bias? -> y
class Forward : public Kernel {
 public:
  explicit Forward(const KernelSpec& spec)
      : activation_(ActivationOf(spec.attributes)), bias_(Has(spec.inputs, 2)) {
    const Problem p = DescribePart(spec, spec.outputs[0]);
    empty_ = IsEmpty(p);
    if (!empty_) MakeProduct(p, bias_, activation_, &layout_, &convolution_);
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView& y = args.outputs[0];
    if (empty_) {  // no channels to sum: the bias alone
      Zero(y);
      if (bias_) AddBias(args.inputs[2].as<float>(), y);
      Activate(activation_, y.as<float>(), y.num_elements());
      return KernelStatus::Ok();
    }
    const KernelStatus status = Caught([&] {
      convolution_.Run(
          {args.inputs[0].data, args.inputs[1].data, y.data, bias_ ? args.inputs[2].data : nullptr},
          args.workspace);
    });
    if (status.ok() && !IsPostOp(activation_)) {
      Activate(activation_, y.as<float>(), y.num_elements());
    }
    return status;
  }

 private:
  Activation activation_;
  bool bias_, empty_;
  WorkspaceLayout layout_;
  Convolution convolution_;
};

// x, weight, bias?, y?, dy -> dx, dweight, dbias
class Backward : public Kernel {
 public:
  explicit Backward(const KernelSpec& spec) : activation_(ActivationOf(spec.attributes)) {
    const Problem p = DescribePart(spec, spec.inputs[4]);
    empty_ = IsEmpty(p);
    if (activation_ != Activation::kNone) dz_ = layout_.Add(NumElements(p.y) * sizeof(float));
    again_ = activation_ != Activation::kNone && !GradientUsesOutput(activation_);
    bias_ = Has(spec.inputs, 2);
    if (empty_) return;
    // They run one after the other.
    const size_t shared = layout_.end();
    if (again_) MakeProduct(p, bias_, Activation::kNone, &layout_, &product_);
    layout_.ReuseFrom(shared);
    if (Has(spec.outputs, 0)) MakeInputGradient(p, &layout_, &data_);
    layout_.ReuseFrom(shared);
    if (!Has(spec.outputs, 1) && !Has(spec.outputs, 2)) return;
    MakeWeightGradient(p, &layout_, &weights_);
    // oneDNN writes a gradient even if it is not used.
    if (!Has(spec.outputs, 1)) spare_weight_ = layout_.Add(NumElements(p.weight) * sizeof(float));
    if (!Has(spec.outputs, 2)) spare_bias_ = layout_.Add(NumElements(p.bias) * sizeof(float));
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    TensorView dz = args.inputs[4];
    if (activation_ != Activation::kNone) {
      dz.data = WorkspaceAt<char>(args.workspace, dz_);
      if (KernelStatus status = BeforeActivation(args, dz); !status.ok()) return status;
    }
    float *dx = DataAt(args.outputs, 0), *dweight = DataAt(args.outputs, 1),
          *dbias = DataAt(args.outputs, 2);
    if (empty_) {
      for (size_t i = 0; i < std::min<size_t>(2, args.outputs.size()); ++i) Zero(args.outputs[i]);
      if (dbias != nullptr) SumChannels(dz, dbias);
      return KernelStatus::Ok();
    }
    return Caught([&] {
      void *x = args.inputs[0].data, *weight = args.inputs[1].data;
      if (dx != nullptr) data_.Run({dz.data, weight, dx}, args.workspace);
      if (dweight == nullptr && dbias == nullptr) return;
      if (dweight == nullptr) dweight = WorkspaceAt(args.workspace, spare_weight_);
      if (dbias == nullptr) dbias = WorkspaceAt(args.workspace, spare_bias_);
      weights_.Run({x, dz.data, dweight, dbias}, args.workspace);
    });
  }

 private:
  // dz = dy times the activation's gradient.
  KernelStatus BeforeActivation(const KernelArgs& args, const TensorView& dz) {
    const float* saved = DataAt(args.inputs, 3);
    if (again_) {
      saved = dz.as<float>();
      if (empty_) {
        Zero(dz);
        if (bias_) AddBias(args.inputs[2].as<float>(), dz);
      } else {
        const KernelStatus status = Caught([&] {
          product_.Run({args.inputs[0].data, args.inputs[1].data, dz.data,
                        bias_ ? args.inputs[2].data : nullptr},
                       args.workspace);
        });
        if (!status.ok()) return status;
      }
    }
    ActivationGradient(activation_, saved, args.inputs[4].as<float>(), dz.as<float>(),
                       dz.num_elements());
    return KernelStatus::Ok();
  }

  Activation activation_;
  bool bias_, empty_, again_;
  WorkspaceLayout layout_;
  size_t dz_ = 0, spare_weight_ = 0, spare_bias_ = 0;
  Convolution product_, data_, weights_;
};

// The convolution whose gradient the transposed one is: it maps y to x.
Problem Inverse(const KernelSpec& spec, const Dims& y) {
  return Describe(spec.attributes, y, spec.inputs[1].dims, spec.inputs[0].dims);
}

// x, weight, bias? -> y
class TransposedForward : public Kernel {
 public:
  explicit TransposedForward(const KernelSpec& spec) {
    const Problem p = Inverse(spec, spec.outputs[0].dims);
    empty_ = IsEmpty(p);
    if (!empty_) MakeInputGradient(p, &layout_, &convolution_);
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView& y = args.outputs[0];
    if (empty_) {
      Zero(y);
    } else {
      const KernelStatus status = Caught([&] {
        convolution_.Run({args.inputs[0].data, args.inputs[1].data, y.data}, args.workspace);
      });
      if (!status.ok()) return status;
    }
    if (const float* bias = DataAt(args.inputs, 2); bias != nullptr) AddBias(bias, y);
    return KernelStatus::Ok();
  }

 private:
  bool empty_;
  WorkspaceLayout layout_;
  Convolution convolution_;
};

// x, weight, dy -> dx, dweight, dbias
class TransposedBackward : public Kernel {
 public:
  explicit TransposedBackward(const KernelSpec& spec) {
    const Problem p = Inverse(spec, spec.inputs[2].dims);
    empty_ = IsEmpty(p);
    if (empty_) return;
    // They run one after the other.
    if (Has(spec.outputs, 0)) MakeProduct(p, false, Activation::kNone, &layout_, &data_);
    layout_.ReuseFrom(0);
    if (!Has(spec.outputs, 1)) return;
    MakeWeightGradient(p, &layout_, &weights_);
    spare_bias_ = layout_.Add(NumElements(p.bias) * sizeof(float));
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView& dy = args.inputs[2];
    float *dx = DataAt(args.outputs, 0), *dweight = DataAt(args.outputs, 1),
          *dbias = DataAt(args.outputs, 2);
    if (dbias != nullptr) SumChannels(dy, dbias);
    if (empty_) {
      for (size_t i = 0; i < std::min<size_t>(2, args.outputs.size()); ++i) Zero(args.outputs[i]);
      return KernelStatus::Ok();
    }
    return Caught([&] {
      if (dx != nullptr) data_.Run({dy.data, args.inputs[1].data, dx}, args.workspace);
      if (dweight == nullptr) return;
      // The bias gradient of the inverse sums x, which is not needed.
      weights_.Run(
          {dy.data, args.inputs[0].data, dweight, WorkspaceAt<char>(args.workspace, spare_bias_)},
          args.workspace);
    });
  }

 private:
  bool empty_;
  WorkspaceLayout layout_;
  size_t spare_bias_ = 0;
  Convolution data_, weights_;
};

template <typename K>
KernelFactory Factory() {
  return ViaF32([](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (spec.batch_invariant) {
      *refusal = "convolution has no batch-invariant kernel";
      return nullptr;
    }
    try {
      return std::make_unique<K>(spec);
    } catch (const dnnl::error& error) {
      *refusal = std::string("oneDNN cannot make this convolution: ") + error.what();
      return nullptr;
    }
  });
}

}  // namespace

void AddConvolution(KernelRegistry& registry, const std::string& name) {
  registry.Add(name, Factory<Forward>());
  registry.Add(name + "_grad", Factory<Backward>());
}

void AddTransposedConvolution(KernelRegistry& registry, const std::string& name) {
  registry.Add(name, Factory<TransposedForward>());
  registry.Add(name + "_grad", Factory<TransposedBackward>());
}

}  // namespace espalier
