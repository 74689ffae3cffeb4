#include "server/jobs/operator_programs.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"

namespace espalier {
namespace {

constexpr int64_t kAlignment = 64;

class Builder {
 public:
  Builder(const std::string& op, const Attributes& attributes) {
    program_.set_format_version(1);
    program_.set_name(absl::StrCat("measure ", op));
    program_.set_world_size(1);
    compute_.set_op(op);
    AttributesToProto(attributes, compute_.mutable_attributes());
  }

  // When the operand was written, relative to the operator that reads it.
  enum Age { kEarlier, kJustNow };

  // Adds an operand with a value, or an absent one if the type is invalid.
  void Input(const TensorType& type, Age age = kEarlier) {
    compute_.add_inputs(Operand(type, age));
  }

  // Returns the operand's buffer, or -1 if it is absent.
  int Operand(const TensorType& type, Age age) {
    if (type.dtype == DType::kInvalid) return -1;
    const int index = program_.buffers_size();
    v1::Buffer* buffer = Add(type);
    if (IsFloat(type.dtype) && age == kJustNow) {
      buffer->set_kind(v1::SCRATCH);
    } else if (IsFloat(type.dtype)) {
      buffer->set_kind(v1::PARAMETER_SHARD);
      buffer->mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
      buffer->mutable_initializer()->set_scale(0.1);
    } else {
      buffer->set_kind(v1::PERSISTENT);  // zeros
    }
    return index;
  }

  void Output(const TensorType& type) {
    if (type.dtype == DType::kInvalid) {
      compute_.add_outputs(-1);
      return;
    }
    compute_.add_outputs(program_.buffers_size());
    Add(type)->set_kind(v1::SCRATCH);
  }

  // Adds, instead of the operator, the parameter move of `update` with these inputs.
  void Moves(const Update& update, const std::vector<TensorType>& inputs) {
    // Set only so that the program is complete: a move takes its rates from an optimizer.
    program_.mutable_optimizer()->set_name(update.variants[0].name);
    v1::UpdateInstruction* out = program_.add_instructions()->mutable_update();
    out->set_op(compute_.op());
    *out->mutable_attributes() = compute_.attributes();
    out->set_parameter(Operand(inputs[0], kEarlier));
    out->set_gradient(Operand(inputs[1], kEarlier));
    out->set_scale(Operand(inputs[2], kEarlier));
    // Learning rate and step. Zeros would leave the parameter unchanged.
    const float hyper[2] = {1e-3f, 1.0f};
    out->set_hyper(program_.buffers_size());
    v1::Buffer* buffer = Add({DType::kF32, {2}});
    buffer->set_kind(v1::LITERAL);
    buffer->set_literal(reinterpret_cast<const char*>(hyper), sizeof(hyper));
    for (size_t i = 4; i < inputs.size(); ++i) out->add_state(Operand(inputs[i], kEarlier));
  }

  v1::Program Build() {
    program_.set_arena_bytes(offset_);
    program_.set_peak_bytes(offset_);
    if (program_.instructions_size() > 0) return program_;
    v1::Instruction* instruction = program_.add_instructions();
    *instruction->mutable_compute() = compute_;
    instruction->set_node(compute_.op());
    return program_;
  }

 private:
  v1::Buffer* Add(const TensorType& type) {
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_name(absl::StrCat("b", program_.buffers_size() - 1));
    buffer->mutable_spec()->set_dtype(ToProto(type.dtype));
    for (int64_t dim : type.dims) buffer->mutable_spec()->add_dims(dim);
    buffer->set_offset_bytes(offset_);
    offset_ += (type.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    return buffer;
  }

  v1::Program program_;
  v1::ComputeInstruction compute_;
  int64_t offset_ = 0;
};

// A shard of an image is padded only where the image ends (ops/kernel/shard_padding.h). The types
// do not say which part it is, but their sizes give the amount of padding.
Attributes AttributesOf(const OpDef& def, const NodeTypes& shard) {
  Attributes out = shard.attributes;
  const bool pools = def.name == "pool2d";
  const bool convolves =
      absl::StartsWith(def.name, "conv") && def.name.find("transpose") == def.name.npos;
  if (!pools && !convolves) return out;
  const Dims &x = shard.inputs[0].dims, &y = shard.outputs[0].dims;
  Dims kernel = out.Ints("kernel");
  if (convolves) kernel.assign(shard.inputs[1].dims.begin() + 2, shard.inputs[1].dims.end());
  const size_t spatial = kernel.size();
  std::vector<int64_t> pads = out.Ints("pads", std::vector<int64_t>(2 * spatial, 0));
  const std::vector<int64_t> strides = out.Ints("strides", std::vector<int64_t>(spatial, 1)),
                             dilations = out.Ints("dilations", std::vector<int64_t>(spatial, 1));
  for (size_t i = 0; i < spatial; ++i) {
    int64_t &before = pads[i], &after = pads[spatial + i];
    // The extent that the windows cover. The remainder (or excess, with ceil_mode) is less than one
    // stride.
    const int64_t reach = (y[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1;
    if (std::abs(x[2 + i] + before + after - reach) < strides[i]) continue;
    const int64_t needed = std::max<int64_t>(0, reach - x[2 + i]);
    before = std::min(before, needed);
    after = std::min(after, needed - before);
  }
  out.Set("pads", std::move(pads));
  return out;
}

}  // namespace

std::vector<v1::Program> OperatorPrograms(const OpDef& def, const NodeTypes& shard) {
  std::vector<v1::Program> programs;
  const Attributes attributes = AttributesOf(def, shard);
  Builder forward(def.name, attributes);
  if (def.update.has_value()) {
    forward.Moves(*def.update, shard.inputs);
    return {forward.Build()};
  }
  for (size_t i = 0; i < shard.inputs.size(); ++i) {
    forward.Input(shard.inputs[i], i == 0 ? Builder::kJustNow : Builder::kEarlier);
  }
  for (const TensorType& type : shard.outputs) forward.Output(type);
  programs.push_back(forward.Build());
  if (!def.has_gradient()) return programs;

  const Gradient& gradient = *def.gradient;
  const int inputs = static_cast<int>(shard.inputs.size());
  // A variadic input is named by its first index and covers all later ones.
  auto last_of = [&](int index) {
    const bool variadic = index < static_cast<int>(def.inputs.size()) && def.inputs[index].variadic;
    return variadic ? inputs : std::min(index + 1, inputs);
  };
  Builder backward(def.name + "_grad", attributes);
  for (int index : gradient.needs_inputs) {
    if (index >= inputs) backward.Input({});
    for (int i = index; i < last_of(index); ++i) backward.Input(shard.inputs[i]);
  }
  for (int index : gradient.needs_outputs) backward.Input(shard.outputs[index]);
  for (const TensorType& type : shard.outputs) backward.Input(type, Builder::kJustNow);
  for (int index : gradient.differentiable) {
    if (index >= inputs) backward.Output({});
    for (int i = index; i < last_of(index); ++i) backward.Output(shard.inputs[i]);
  }
  programs.push_back(backward.Build());
  return programs;
}

}  // namespace espalier
