// Convolution by oneDNN, which picks the layouts; operands are reordered around it where they
// differ from plain NCHW.
#include <algorithm>
#include <dnnl.hpp>
#include <unordered_map>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/workspace.h"

namespace espalier {
namespace {

using dnnl::memory;

struct Problem {
  memory::dims x, weight, y, bias;
  memory::dims strides, dilations, pads_before, pads_after;
};

// The number of groups follows from the shapes, so that it also holds for a shard.
Problem Describe(const Attributes& a, const Dims& x, const Dims& weight, const Dims& y) {
  Problem p;
  p.x = x;
  p.y = y;
  p.bias = {weight[0]};
  const int64_t groups = weight[1] > 0 ? x[1] / weight[1] : 1;
  p.weight = groups > 1 ? memory::dims{groups, weight[0] / groups, weight[1], weight[2], weight[3]}
                        : memory::dims(weight);
  const std::vector<int64_t> pads = a.Ints("pads");
  p.strides = a.Ints("strides");
  for (int64_t d : a.Ints("dilations")) p.dilations.push_back(d - 1);  // oneDNN counts from 0
  p.pads_before = {pads[0], pads[1]};
  p.pads_after = {pads[2], pads[3]};
  return p;
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

dnnl::primitive_attr UserScratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

dnnl::convolution_forward::primitive_desc ForwardDesc(const Problem& p, bool bias,
                                                      const dnnl::engine& engine) {
  using dnnl::convolution_forward;
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  const memory::desc x = AnyLayout(p.x), w = AnyLayout(p.weight), y = AnyLayout(p.y);
  const convolution_forward::desc desc =
      bias ? convolution_forward::desc(kKind, kAlgorithm, x, w, Plain(p.bias), y, p.strides,
                                       p.dilations, p.pads_before, p.pads_after)
           : convolution_forward::desc(kKind, kAlgorithm, x, w, y, p.strides, p.dilations,
                                       p.pads_before, p.pads_after);
  return {desc, UserScratch(), engine};
}

bool IsEmpty(const Problem& p) {
  for (const memory::dims* dims : {&p.x, &p.weight, &p.y}) {
    if (NumElements(*dims) == 0) return true;
  }
  return false;
}

void Zero(const TensorView& view) {
  if (view.present()) std::fill_n(view.as<float>(), view.num_elements(), 0.0f);
}

class ForwardKernel : public Kernel {
 public:
  ForwardKernel(const Problem& p, bool bias) : bias_(bias), empty_(IsEmpty(p)) {
    if (empty_) return;
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const auto chosen = ForwardDesc(p, bias, engine);
    convolution_.Make(engine, chosen, dnnl::convolution_forward(chosen), &layout_);
    convolution_.Add(DNNL_ARG_SRC, p.x, chosen.src_desc(), false, &layout_);
    convolution_.Add(DNNL_ARG_WEIGHTS, p.weight, chosen.weights_desc(), false, &layout_);
    convolution_.Add(DNNL_ARG_DST, p.y, chosen.dst_desc(), true, &layout_);
    if (bias) convolution_.Add(DNNL_ARG_BIAS, p.bias, chosen.bias_desc(), false, &layout_);
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    if (empty_) {  // no channels to sum: the bias alone
      const Dims& y = args.outputs[0].dims();
      const int64_t plane = y[2] * y[3];
      for (int64_t i = 0; i < args.outputs[0].num_elements(); ++i) {
        args.outputs[0].as<float>()[i] =
            bias_ ? args.inputs[2].as<float>()[i / plane % y[1]] : 0.0f;
      }
      return KernelStatus::Ok();
    }
    try {
      convolution_.Run({args.inputs[0].data, args.inputs[1].data, args.outputs[0].data,
                        bias_ ? args.inputs[2].data : nullptr},
                       args.workspace);
      return KernelStatus::Ok();
    } catch (const dnnl::error& error) {
      return KernelStatus::Error(std::string("conv2d: oneDNN failed: ") + error.what());
    }
  }

 private:
  bool bias_, empty_;
  WorkspaceLayout layout_;
  Convolution convolution_;
};

// x, weight, dy -> dx, dweight, dbias
class BackwardKernel : public Kernel {
 public:
  BackwardKernel(const Problem& p, bool want_dx) : empty_(IsEmpty(p)) {
    if (empty_) return;
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const auto hint = ForwardDesc(p, true, engine);
    const memory::desc x = AnyLayout(p.x), w = AnyLayout(p.weight), y = AnyLayout(p.y);
    if (want_dx) {
      using dnnl::convolution_backward_data;
      const convolution_backward_data::primitive_desc chosen(
          convolution_backward_data::desc(kAlgorithm, x, w, y, p.strides, p.dilations,
                                          p.pads_before, p.pads_after),
          UserScratch(), engine, hint);
      data_.Make(engine, chosen, convolution_backward_data(chosen), &layout_);
      data_.Add(DNNL_ARG_DIFF_DST, p.y, chosen.diff_dst_desc(), false, &layout_);
      data_.Add(DNNL_ARG_WEIGHTS, p.weight, chosen.weights_desc(), false, &layout_);
      data_.Add(DNNL_ARG_DIFF_SRC, p.x, chosen.diff_src_desc(), true, &layout_);
    }
    using dnnl::convolution_backward_weights;
    const convolution_backward_weights::primitive_desc chosen(
        convolution_backward_weights::desc(kAlgorithm, x, w, Plain(p.bias), y, p.strides,
                                           p.dilations, p.pads_before, p.pads_after),
        UserScratch(), engine, hint);
    weights_.Make(engine, chosen, convolution_backward_weights(chosen), &layout_);
    weights_.Add(DNNL_ARG_SRC, p.x, chosen.src_desc(), false, &layout_);
    weights_.Add(DNNL_ARG_DIFF_DST, p.y, chosen.diff_dst_desc(), false, &layout_);
    weights_.Add(DNNL_ARG_DIFF_WEIGHTS, p.weight, chosen.diff_weights_desc(), true, &layout_);
    weights_.Add(DNNL_ARG_DIFF_BIAS, p.bias, chosen.diff_bias_desc(), true, &layout_);
    // Where a gradient is not wanted oneDNN still writes it.
    spare_weight_ = layout_.Add(NumElements(p.weight) * sizeof(float));
    spare_bias_ = layout_.Add(NumElements(p.bias) * sizeof(float));
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    if (empty_) {
      for (const TensorView& output : args.outputs) Zero(output);
      return KernelStatus::Ok();
    }
    const auto output = [&](size_t i) {
      return i < args.outputs.size() ? args.outputs[i].data : nullptr;
    };
    void *x = args.inputs[0].data, *weight = args.inputs[1].data, *dy = args.inputs[2].data;
    void *dx = output(0), *dweight = output(1), *dbias = output(2);
    try {
      if (dx != nullptr) data_.Run({dy, weight, dx}, args.workspace);
      if (dweight == nullptr && dbias == nullptr) return KernelStatus::Ok();
      if (dweight == nullptr) dweight = WorkspaceAt<char>(args.workspace, spare_weight_);
      if (dbias == nullptr) dbias = WorkspaceAt<char>(args.workspace, spare_bias_);
      weights_.Run({x, dy, dweight, dbias}, args.workspace);
      return KernelStatus::Ok();
    } catch (const dnnl::error& error) {
      return KernelStatus::Error(std::string("conv2d_grad: oneDNN failed: ") + error.what());
    }
  }

 private:
  bool empty_;
  WorkspaceLayout layout_;
  size_t spare_weight_ = 0, spare_bias_ = 0;
  Convolution data_, weights_;
};

template <typename Make>
std::unique_ptr<Kernel> Guarded(const KernelSpec& spec, std::string* refusal, const Make& make) {
  if (spec.row_stable) {
    *refusal = "convolution has no row-stable kernel";
    return nullptr;
  }
  try {
    return make();
  } catch (const dnnl::error& error) {
    *refusal = std::string("oneDNN cannot make this convolution: ") + error.what();
    return nullptr;
  }
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string* refusal) {
  return Guarded(spec, refusal, [&] {
    const bool bias = spec.inputs.size() > 2 && spec.inputs[2].dtype != DType::kInvalid;
    return std::make_unique<ForwardKernel>(
        Describe(spec.attributes, spec.inputs[0].dims, spec.inputs[1].dims, spec.outputs[0].dims),
        bias);
  });
}

std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string* refusal) {
  return Guarded(spec, refusal, [&] {
    return std::make_unique<BackwardKernel>(
        Describe(spec.attributes, spec.inputs[0].dims, spec.inputs[1].dims, spec.inputs[2].dims),
        spec.outputs[0].dtype != DType::kInvalid);
  });
}

}  // namespace

void RegisterConv2dCpu(KernelRegistry& registry) {
  registry.Add("conv2d", ViaF32(MakeForward));
  registry.Add("conv2d_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
