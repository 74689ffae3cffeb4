#include "ops/onnx/writer.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"

namespace espalier::onnx_export {
namespace {

void SetAttribute(const std::string& name, const AttributeValue& value, onnx::NodeProto* node) {
  onnx::AttributeProto* attribute = node->add_attribute();
  attribute->set_name(name);
  if (const auto* i = std::get_if<int64_t>(&value)) {
    attribute->set_type(onnx::AttributeProto::INT);
    attribute->set_i(*i);
  } else if (const auto* b = std::get_if<bool>(&value)) {
    attribute->set_type(onnx::AttributeProto::INT);
    attribute->set_i(*b ? 1 : 0);
  } else if (const auto* d = std::get_if<double>(&value)) {
    attribute->set_type(onnx::AttributeProto::FLOAT);
    attribute->set_f(static_cast<float>(*d));
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    attribute->set_type(onnx::AttributeProto::STRING);
    attribute->set_s(*s);
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    attribute->set_type(onnx::AttributeProto::INTS);
    for (int64_t v : *ints) attribute->add_ints(v);
  } else if (const auto* floats = std::get_if<std::vector<double>>(&value)) {
    attribute->set_type(onnx::AttributeProto::FLOATS);
    for (double v : *floats) attribute->add_floats(static_cast<float>(v));
  }
}

}  // namespace

Writer::Writer(const OpRegistry& registry, const Graph& graph, onnx::GraphProto* out)
    : registry_(registry), graph_(graph), out_(out) {
  for (const Value& value : graph.values()) names_.insert(value.name);
  for (const auto& [name, value] : graph.outputs) names_.insert(name);
}

void Writer::Refuse(const std::string& why) {
  if (!ok()) return;
  status_ =
      absl::UnimplementedError(absl::StrCat("node '", node_->name, "' (", node_->op, "): ", why));
}

bool Writer::HasIn(int i) const { return i < NumIn() && node_->inputs[i] != kNoValue; }

std::string Writer::In(int i) const { return HasIn(i) ? graph_.value(node_->inputs[i]).name : ""; }

const TensorType& Writer::InType(int i) const { return graph_.value(node_->inputs[i]).type; }

std::string Writer::Out(int k) const { return graph_.value(node_->outputs[k]).name; }

const TensorType& Writer::OutType(int k) const { return graph_.value(node_->outputs[k]).type; }

std::string Writer::Fresh() {
  std::string name;
  do {
    name = absl::StrCat(node_->name, "/", counter_++);
  } while (!names_.insert(name).second);
  return name;
}

void Writer::EmitTo(const std::vector<std::string>& outputs, const std::string& op_type,
                    const std::vector<std::string>& inputs, const Attributes& attributes) {
  onnx::NodeProto* node = out_->add_node();
  node->set_op_type(op_type);
  node->set_name(outputs[0]);
  size_t used = inputs.size();
  while (used > 0 && inputs[used - 1].empty()) --used;
  for (size_t i = 0; i < used; ++i) node->add_input(inputs[i]);
  for (const std::string& output : outputs) node->add_output(output);
  for (const auto& [name, value] : attributes.values()) SetAttribute(name, value, node);
}

void Writer::AddStrings(const std::string& name, const std::vector<std::string>& strings) {
  onnx::AttributeProto* attribute = out_->mutable_node(out_->node_size() - 1)->add_attribute();
  attribute->set_name(name);
  attribute->set_type(onnx::AttributeProto::STRINGS);
  for (const std::string& text : strings) attribute->add_strings(text);
}

std::string Writer::Emit(const std::string& op_type, const std::vector<std::string>& inputs,
                         const Attributes& attributes) {
  const std::string name = Fresh();
  EmitTo({name}, op_type, inputs, attributes);
  return name;
}

void Writer::Finish(const std::string& op_type, const std::vector<std::string>& inputs,
                    const Attributes& attributes) {
  std::vector<std::string> outputs;
  for (int k = 0; k < NumOut(); ++k) outputs.push_back(Out(k));
  EmitTo(outputs, op_type, inputs, attributes);
}

onnx::TensorProto* Writer::AddConstant(DType dtype, const std::vector<int64_t>& dims,
                                       std::string* name) {
  onnx::TensorProto* tensor = out_->add_initializer();
  *name = Fresh();
  tensor->set_name(*name);
  tensor->set_data_type(onnx_import::ToOnnx(dtype));
  for (int64_t dim : dims) tensor->add_dims(dim);
  return tensor;
}

std::string Writer::Ints(const std::vector<int64_t>& values) {
  std::string name;
  onnx::TensorProto* tensor =
      AddConstant(DType::kI64, {static_cast<int64_t>(values.size())}, &name);
  for (int64_t v : values) tensor->add_int64_data(v);
  return name;
}

std::string Writer::Int(int64_t value) {
  std::string name;
  AddConstant(DType::kI64, {}, &name)->add_int64_data(value);
  return name;
}

std::string Writer::Number(double value, DType dtype) {
  if (dtype == DType::kBF16 || dtype == DType::kF16) {
    return CastTo(Number(value, DType::kF32), dtype);
  }
  std::string name;
  onnx_import::AppendNumber(dtype, value, AddConstant(dtype, {}, &name)->mutable_raw_data());
  return name;
}

std::string Writer::Floats(const std::vector<int64_t>& dims, const std::vector<float>& values) {
  std::string name;
  onnx::TensorProto* tensor = AddConstant(DType::kF32, dims, &name);
  for (float v : values) tensor->add_float_data(v);
  return name;
}

std::string Writer::Bools(const std::vector<int64_t>& dims, const std::vector<bool>& values) {
  std::string name;
  onnx::TensorProto* tensor = AddConstant(DType::kBool, dims, &name);
  for (bool v : values) tensor->add_int32_data(v ? 1 : 0);
  return name;
}

std::string Writer::Reshape(const std::string& x, const std::vector<int64_t>& shape) {
  return Emit("Reshape", {x, Ints(shape)});
}

std::string Writer::Transpose(const std::string& x, const std::vector<int64_t>& perm) {
  return Emit("Transpose", {x}, {{"perm", perm}});
}

std::string Writer::Reduce(const std::string& op_type, const std::string& x,
                           const std::vector<int64_t>& axes, bool keepdims) {
  return Emit(op_type, {x, axes.empty() ? "" : Ints(axes)}, {{"keepdims", keepdims}});
}

std::string Writer::CastTo(const std::string& x, DType dtype) {
  return Emit("Cast", {x}, {{"to", static_cast<int64_t>(onnx_import::ToOnnx(dtype))}});
}

void Writer::WriteDirect(const OpDef& def) {
  Attributes written;
  for (const AttributeSpec& spec : def.attributes) {
    auto name = def.onnx->attributes.find(spec.name);
    auto value = attributes().values().find(spec.name);
    if (value == attributes().values().end()) continue;
    if (name != def.onnx->attributes.end()) {
      written.Set(name->second, value->second);
    } else if (spec.name != "count" && spec.default_value != value->second) {
      return Refuse(absl::StrCat("attribute '", spec.name, "' has no counterpart in ONNX"));
    }
  }
  std::vector<std::string> inputs;
  for (int i = 0; i < NumIn(); ++i) inputs.push_back(In(i));
  Finish(def.onnx->op_type, inputs, written);
}

void Writer::Write(const WriterTable& table, NodeId id) {
  node_ = &graph_.node(id);
  const OpDef& def = *registry_.Find(node_->op);
  if (auto it = table.find(node_->op); it != table.end()) {
    it->second(*this);
  } else if (def.onnx.has_value()) {
    WriteDirect(def);
  } else {
    Refuse("it has no form in ONNX");
  }
}

}  // namespace espalier::onnx_export
