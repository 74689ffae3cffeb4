#include "ops/onnx/translator.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"

namespace espalier::onnx_import {
namespace {

const Dims kNoDims;

double Number(DType dtype, const char* data) {
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, data, sizeof value);
      return value;
    }
    case DType::kI32: {
      int32_t value;
      std::memcpy(&value, data, sizeof value);
      return value;
    }
    case DType::kI64: {
      int64_t value;
      std::memcpy(&value, data, sizeof value);
      return static_cast<double>(value);
    }
    default:
      return *data != 0;
  }
}

}  // namespace

void Translator::SetStatus(absl::StatusCode code, absl::string_view what) {
  if (!status_.ok()) return;
  std::string place;
  if (node_ != nullptr) {
    place = absl::StrCat(
        "ONNX node '",
        node_->name().empty() && node_->output_size() > 0 ? node_->output(0) : node_->name(), "' (",
        node_->op_type(), "): ");
  }
  status_ = absl::Status(code, absl::StrCat(place, what));
}

void Translator::Fail(absl::string_view what) {
  SetStatus(absl::StatusCode::kInvalidArgument, what);
}

void Translator::Refuse(absl::string_view what) {
  SetStatus(absl::StatusCode::kUnimplemented, what);
}

std::string Translator::Unique(std::string name) {
  if (name.empty()) name = "node";
  std::string unique = name;
  for (int i = 1; !names_.insert(unique).second; ++i) unique = absl::StrCat(name, ".", i);
  return unique;
}

void Translator::AddInput(const std::string& name, DType dtype, const Dims& dims) {
  names_.insert(name);
  values_[name] =
      graph_->AddValue({.name = name, .type = {dtype, dims}, .kind = ValueKind::kInput});
  TensorType probe{dtype, dims};
  for (int64_t& dim : probe.dims) dim = dim < 0 ? kProbeBatch : dim;
  types_.push_back(std::move(probe));
}

void Translator::AddInitializer(const onnx::TensorProto& tensor) {
  absl::StatusOr<Elements> elements = ReadTensor(tensor);
  if (!elements.ok()) {
    SetStatus(elements.status().code(), elements.status().message());
    return;
  }
  constants_[tensor.name()] = {std::move(elements->type), std::move(elements->bytes), true};
}

void Translator::Begin(const onnx::NodeProto& node, int opset) {
  node_ = &node;
  opset_ = opset;
}

ValueId Translator::Find(const std::string& name) {
  if (auto it = values_.find(name); it != values_.end()) return it->second;
  if (constants_.count(name) > 0) return Materialise(name, true);
  return kNoValue;
}

ValueId Translator::Materialise(const std::string& name, bool trainable) {
  const Constant& constant = constants_.at(name);
  const bool parameter = constant.parameter && IsFloat(constant.type.dtype);
  types_.push_back(constant.type);
  names_.insert(name);
  const ValueId id =
      graph_->AddValue({.name = name,
                        .type = constant.type,
                        .kind = parameter ? ValueKind::kParameter : ValueKind::kConstant,
                        .trainable = trainable,
                        .constant = constant.bytes});
  values_[name] = id;
  return id;
}

bool Translator::HasInput(int index) const {
  return index < node_->input_size() && !node_->input(index).empty();
}

ValueId Translator::Input(int index) {
  if (!ok() || !HasInput(index)) return kNoValue;
  const ValueId value = Find(node_->input(index));
  if (value == kNoValue) {
    Fail(absl::StrCat("reads '", node_->input(index),
                      "', which is neither an input, an initializer nor computed before"));
  }
  return value;
}

ValueId Translator::FrozenInput(int index) {
  const ValueId value = Input(index);
  if (value != kNoValue) graph_->mutable_value(value).trainable = false;
  return value;
}

const Dims& Translator::DimsOf(ValueId value) const {
  return value == kNoValue ? kNoDims : types_[value].dims;
}

DType Translator::DTypeOf(ValueId value) const {
  return value == kNoValue ? DType::kInvalid : types_[value].dtype;
}

const Translator::Constant* Translator::FindConstant(int index) const {
  if (!HasInput(index)) return nullptr;
  auto it = constants_.find(node_->input(index));
  return it == constants_.end() ? nullptr : &it->second;
}

bool Translator::IsConstant(int index) const { return FindConstant(index) != nullptr; }

std::vector<int64_t> Translator::ConstantInts(int index) {
  if (!ok()) return {};
  const Constant* constant = FindConstant(index);
  if (constant == nullptr ||
      (constant->type.dtype != DType::kI64 && constant->type.dtype != DType::kI32)) {
    SetStatus(absl::StatusCode::kUnimplemented,
              absl::StrCat("input ", index,
                           " must be integers that are known when the model is "
                           "imported (a constant, an initializer or computed from shapes)"));
    return {};
  }
  std::vector<int64_t> values;
  for (int64_t i = 0; i < constant->type.num_elements(); ++i) {
    values.push_back(static_cast<int64_t>(
        Number(constant->type.dtype, constant->bytes.data() + i * SizeOf(constant->type.dtype))));
  }
  return values;
}

double Translator::ConstantNumber(int index) {
  if (!ok()) return 0;
  const Constant* constant = FindConstant(index);
  if (constant == nullptr || constant->type.num_elements() != 1 ||
      constant->type.dtype == DType::kF16 || constant->type.dtype == DType::kBF16) {
    SetStatus(absl::StatusCode::kUnimplemented,
              absl::StrCat("input ", index, " must be one constant number"));
    return 0;
  }
  return Number(constant->type.dtype, constant->bytes.data());
}

const onnx::AttributeProto* Translator::Attribute(const std::string& name) const {
  for (const onnx::AttributeProto& attribute : node_->attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

int64_t Translator::Int(const std::string& name, int64_t fallback) {
  const onnx::AttributeProto* attribute = Attribute(name);
  if (attribute == nullptr) return fallback;
  if (!attribute->has_i()) Fail(absl::StrCat("attribute '", name, "' must be an integer"));
  return attribute->i();
}

double Translator::Float(const std::string& name, double fallback) {
  const onnx::AttributeProto* attribute = Attribute(name);
  if (attribute == nullptr) return fallback;
  if (!attribute->has_f()) Fail(absl::StrCat("attribute '", name, "' must be a number"));
  return attribute->f();
}

std::string Translator::String(const std::string& name, const std::string& fallback) {
  const onnx::AttributeProto* attribute = Attribute(name);
  if (attribute == nullptr) return fallback;
  if (!attribute->has_s()) Fail(absl::StrCat("attribute '", name, "' must be a string"));
  return attribute->s();
}

std::vector<int64_t> Translator::Ints(const std::string& name, std::vector<int64_t> fallback) {
  const onnx::AttributeProto* attribute = Attribute(name);
  if (attribute == nullptr) return fallback;
  return {attribute->ints().begin(), attribute->ints().end()};
}

int64_t Translator::Axis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    Fail(absl::StrCat("axis ", axis, " is not in ", -rank, "..", rank - 1));
    return 0;
  }
  return axis < 0 ? axis + rank : axis;
}

ValueId Translator::Emit(const std::string& op, const std::vector<ValueId>& inputs,
                         Attributes attributes) {
  return EmitN(op, 1, inputs, std::move(attributes))[0];
}

std::vector<ValueId> Translator::EmitN(const std::string& op, int outputs,
                                       const std::vector<ValueId>& inputs, Attributes attributes) {
  std::vector<ValueId> results(outputs, kNoValue);
  if (!ok()) return results;
  const OpDef* def = registry_.Find(op);
  if (def == nullptr) {
    Refuse(absl::StrCat("needs operator '", op, "', which this build lacks"));
    return results;
  }
  NodeTypes types;
  types.attributes = attributes;
  for (ValueId v : inputs) types.inputs.push_back(v == kNoValue ? TensorType{} : types_[v]);
  if (absl::Status status = InferNode(*def, &types); !status.ok()) {
    Fail(status.message());
    return results;
  }
  if (static_cast<int>(types.outputs.size()) != outputs) {
    Fail(absl::StrCat("has ", outputs, " outputs, expected ", types.outputs.size()));
    return results;
  }
  const std::string base = node_ == nullptr           ? op
                           : !node_->name().empty()   ? node_->name()
                           : node_->output_size() > 0 ? node_->output(0)
                                                      : op;
  const std::string name = Unique(base);
  for (int k = 0; k < outputs; ++k) {
    results[k] = graph_->AddValue({.name = k == 0 ? name : Unique(absl::StrCat(name, ":", k))});
    types_.push_back(types.outputs[k]);
  }
  // Attributes as given, not as canonicalised for the probe batch.
  graph_->AddNode({.name = name,
                   .op = op,
                   .attributes = std::move(attributes),
                   .inputs = inputs,
                   .outputs = results});
  return results;
}

ValueId Translator::Scalar(double value, DType dtype) {
  if (!ok()) return kNoValue;
  std::string bytes(SizeOf(dtype), '\0');
  if (dtype == DType::kF32) {
    const float f = static_cast<float>(value);
    std::memcpy(bytes.data(), &f, sizeof f);
  } else {
    Refuse(absl::StrCat("needs a constant of type ", Name(dtype)));
    return kNoValue;
  }
  types_.push_back({dtype, {}});
  return graph_->AddValue({.name = Unique("constant"),
                           .type = {dtype, {}},
                           .kind = ValueKind::kConstant,
                           .constant = std::move(bytes)});
}

void Translator::Return(ValueId value, int index) {
  if (!ok() || index >= node_->output_size() || node_->output(index).empty()) return;
  if (value == kNoValue) {
    Fail("gave no result");
    return;
  }
  const std::string& name = node_->output(index);
  if (values_.count(name) > 0 || constants_.count(name) > 0) {
    Fail(absl::StrCat("output '", name, "' has its value already"));
    return;
  }
  values_[name] = value;
}

void Translator::ReturnInts(std::vector<int64_t> values, Dims dims) {
  if (!ok()) return;
  Constant constant{{DType::kI64, std::move(dims)}, std::string(values.size() * 8, '\0')};
  std::memcpy(constant.bytes.data(), values.data(), values.size() * 8);
  constants_[node_->output(0)] = std::move(constant);
}

// Friend of Translator: keeps the tensor for those who need it at import.
void ConstantNode(Translator& t) {
  const std::string& name = t.node().output(0);
  if (const onnx::AttributeProto* value = t.Attribute("value")) {
    absl::StatusOr<Elements> elements = ReadTensor(value->t());
    if (!elements.ok()) {
      t.SetStatus(elements.status().code(), elements.status().message());
      return;
    }
    t.constants_[name] = {std::move(elements->type), std::move(elements->bytes), false};
  } else if (t.Attribute("value_int") != nullptr) {
    t.ReturnInts({t.Int("value_int", 0)}, {});
  } else if (t.Attribute("value_ints") != nullptr) {
    std::vector<int64_t> values = t.Ints("value_ints", {});
    const int64_t n = static_cast<int64_t>(values.size());
    t.ReturnInts(std::move(values), {n});
  } else if (t.Attribute("value_float") != nullptr) {
    const float f = static_cast<float>(t.Float("value_float", 0));
    std::string bytes(sizeof f, '\0');
    std::memcpy(bytes.data(), &f, sizeof f);
    t.constants_[name] = {{DType::kF32, {}}, std::move(bytes), false};
  } else {
    t.Refuse("has none of the attributes value, value_int, value_ints, value_float");
  }
}

}  // namespace espalier::onnx_import
