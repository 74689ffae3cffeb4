#include "ops/onnx/translator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier::onnx_import {
namespace {

const Dims kNoDims;

// Resource limits for small files.
constexpr int64_t kMaxNodes = 1'000'000;
constexpr int kMaxNesting = 32;  // nesting of functions and branches

constexpr int64_t kMaxInputElements = int64_t{1} << 46;  // of an input; the operators' limit

std::string Key(const std::string& domain, const std::string& op_type) {
  return domain.empty() || domain == "ai.onnx" ? op_type : absl::StrCat(domain, ".", op_type);
}

}  // namespace

Translator::Translator(const OpRegistry& registry, const TranslationTable& table,
                       const ImportOptions& options, const ModelFile& file,
                       const InitializerRoles& roles, int64_t symbolic_batch, Graph* graph)
    : registry_(registry),
      table_(table),
      options_(options),
      file_(file),
      roles_(roles),
      symbolic_batch_(symbolic_batch),
      graph_(graph) {
  for (const OpDef* def : registry.All()) {
    if (def->onnx.has_value()) direct_.emplace(def->onnx->op_type, def);
  }
}

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

void Translator::SetStatus(const absl::Status& status) {
  SetStatus(status.code(), status.message());
}

void Translator::Fail(absl::string_view what) {
  SetStatus(absl::StatusCode::kInvalidArgument, what);
}

void Translator::Refuse(absl::string_view what) {
  SetStatus(absl::StatusCode::kUnimplemented, what);
}

std::string Translator::Unique(std::string name) {
  if (name.empty()) name = "node";
  if (names_.insert(name).second) return name;
  // Continues from the last suffix, because a loop makes many values of one name.
  int64_t& suffix = suffixes_[name];
  std::string unique;
  do {
    unique = absl::StrCat(name, ".", ++suffix);
  } while (!names_.insert(unique).second);
  return unique;
}

void Translator::AddInput(const std::string& name, DType dtype, const Dims& dims) {
  if (!names_.insert(name).second) {
    Fail(absl::StrCat("input '", name, "' stands in the model twice"));
    return;
  }
  TensorType type{dtype, dims};
  const bool symbolic = std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; });
  int64_t elements = 1;
  for (int64_t& dim : type.dims) {
    dim = dim < 0 ? symbolic_batch_ : dim;
    if (dim > 0 && elements > kMaxInputElements / dim) {
      const std::string most =
          symbolic ? absl::StrCat(kMaxInputElements / symbolic_batch_ / 1'000'000,
                                  " million elements a sample; export the model with a fixed batch "
                                  "size, which may have more")
                   : "2^46 elements";
      return Fail(absl::StrCat("ONNX input '", name, "' of shape ", ToString(dims),
                               " has more than ", most));
    }
    elements *= dim;
  }
  root_.values[name] =
      graph_->AddValue({.name = name, .type = {dtype, dims}, .kind = ValueKind::kInput});
  types_.push_back(std::move(type));
}

void Translator::AddParameter(const std::string& name, const MissingValue& parameter) {
  AddInput(name, parameter.type.dtype, parameter.type.dims);
  if (!ok()) return;
  Value& value = graph_->mutable_value(root_.values[name]);
  value.kind = ValueKind::kParameter;
  value.trainable = parameter.trained;
  value.initializer = parameter.initializer;
}

void Translator::AddInitializers(const onnx::GraphProto& graph) {
  if (graph.sparse_initializer_size() > 0) Refuse("sparse ONNX initializers are not read");
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    if (scope_ == &root_) names_.insert(tensor.name());  // parameters keep their names
    if (!scope_->initializers.emplace(tensor.name(), &tensor).second) {
      Fail(absl::StrCat("ONNX initializer '", tensor.name(), "' stands in the model twice"));
    }
  }
}

void Translator::AddFunctions(const onnx::ModelProto& model) {
  for (const onnx::FunctionProto& function : model.functions()) {
    const std::string key = Key(function.domain(), function.name());
    if (!functions_.emplace(FunctionKey{key, function.overload()}, &function).second) {
      Fail(absl::StrCat("ONNX function '", key, "' stands in the model twice",
                        function.overload().empty() ? "" : " as overload ", function.overload()));
    }
  }
}

void Translator::TranslateNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes,
                                int opset) {
  opset_ = opset;
  TranslateBody(nodes);
}

void Translator::TranslateBody(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
  if (++depth_ > kMaxNesting) {
    Refuse(
        absl::StrCat("functions and branches lie more than ", kMaxNesting, " deep in each other"));
  }
  const onnx::NodeProto* outer = node_;
  const auto count = [&] {
    if (++nodes_seen_ > kMaxNodes) {
      Refuse(absl::StrCat("the model has more than ", kMaxNodes, " nodes, written out"));
    }
  };
  count();  // iterations of an empty body count, too
  for (const onnx::NodeProto& node : nodes) {
    if (!ok()) return;  // node_ stays at the error
    node_ = &node;
    count();
    if (node.output_size() == 0) Fail("has no output");
    if (ok()) TranslateNode();
  }
  if (ok()) node_ = outer;
  --depth_;
}

Translator::FunctionKey Translator::CalledFunction() const {
  return {Key(node_->domain(), node_->op_type()), node_->overload()};
}

void Translator::TranslateNode() {
  const std::string key = Key(node_->domain(), node_->op_type());
  if (opset_ < kMinOnnxOpset && key == node_->op_type() &&
      functions_.count(CalledFunction()) == 0) {
    // The meaning is unchanged since then.
    static const auto* const kSince = new std::map<std::string, int>{
        {"Acos", 7}, {"And", 7}, {"Asin", 7},          {"Atan", 7},
        {"Cos", 7},  {"Elu", 6}, {"GlobalMaxPool", 1}, {"GlobalAveragePool", 1},
        {"Not", 1},  {"Or", 7},  {"HardSigmoid", 6},   {"InstanceNormalization", 6},
        {"Selu", 6}, {"Sin", 7}, {"Softplus", 1},      {"Softsign", 1},
        {"Tan", 7},  {"Xor", 7}};
    auto since = kSince->find(key);
    if (since == kSince->end() || opset_ < since->second) {
      Refuse(absl::StrCat("ONNX opset ", opset_, " is not read here; export with opset ",
                          kMinOnnxOpset, " to ", kMaxOnnxOpset));
      return;
    }
  }
  if (auto it = functions_.find(CalledFunction()); it != functions_.end()) {
    return CallFunction(*it->second);
  }
  if (auto it = table_.find(key); it != table_.end()) return it->second(*this);
  if (auto it = direct_.find(key); it != direct_.end()) return Direct(*it->second);
  const std::map<std::string, std::string>& unread = UnsupportedOnnxOperators();
  if (auto it = unread.find(key); it != unread.end()) {
    Refuse(absl::StrCat("operator '", key, "' is not taken: ", it->second));
    return;
  }
  std::string known;
  for (const std::string& name : SupportedOnnxOperators(registry_)) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", name);
  }
  Refuse(absl::StrCat("operator '", key, "' is not known; known are ", known));
}

void Translator::Direct(const OpDef& def) {
  Attributes attributes;
  for (const AttributeSpec& spec : def.attributes) {
    auto name = def.onnx->attributes.find(spec.name);
    if (name == def.onnx->attributes.end() || Attribute(name->second) == nullptr) continue;
    switch (spec.kind) {
      case AttributeKind::kInt:
        attributes.Set(spec.name, Int(name->second, 0));
        break;
      case AttributeKind::kBool:
        attributes.Set(spec.name, Bool(name->second));
        break;
      case AttributeKind::kFloat:
        attributes.Set(spec.name, Float(name->second, 0));
        break;
      case AttributeKind::kString:
        attributes.Set(spec.name, String(name->second, ""));
        break;
      case AttributeKind::kInts:
        attributes.Set(spec.name, Ints(name->second, {}));
        break;
      case AttributeKind::kFloats:
        attributes.Set(spec.name, Floats(name->second));
        break;
    }
  }
  std::vector<ValueId> inputs;
  for (int i = 0; i < NumInputs(); ++i) inputs.push_back(Input(i));
  ReturnAll(EmitN(def.name, std::max(1, def.num_outputs), inputs, std::move(attributes)));
}

void Translator::CallFunction(const onnx::FunctionProto& function) {
  Scope body;
  if (NumInputs() > function.input_size() || node_->output_size() > function.output_size()) {
    Fail(absl::StrCat("has ", NumInputs(), " inputs and ", node_->output_size(),
                      " outputs, the function takes ", function.input_size(), " and ",
                      function.output_size()));
  }
  for (int i = 0; i < function.input_size() && ok(); ++i) {
    body.values[function.input(i)] = Input(i);
  }
  for (const std::string& name : function.attribute()) body.attributes[name] = Attribute(name);
  for (const onnx::AttributeProto& with_default : function.attribute_proto()) {
    const onnx::AttributeProto* given = Attribute(with_default.name());
    body.attributes[with_default.name()] = given != nullptr ? given : &with_default;
  }
  int64_t opset = opset_;
  for (const onnx::OperatorSetIdProto& own : function.opset_import()) {
    if (Key(own.domain(), "").empty()) opset = own.version();
  }
  if (opset < 1 || opset > kMaxOnnxOpset) {
    Refuse(absl::StrCat("the function's opset ", opset, " is not read; export with opset ",
                        kMinOnnxOpset, " to ", kMaxOnnxOpset));
  }
  if (!ok()) return;
  const onnx::NodeProto* call = node_;
  Scope* outer = std::exchange(scope_, &body);
  const int outer_opset = std::exchange(opset_, static_cast<int>(opset));
  TranslateBody(function.node());
  std::vector<ValueId> outputs;
  for (int k = 0; k < call->output_size() && ok(); ++k) {
    outputs.push_back(call->output(k).empty() ? kNoValue : Lookup(function.output(k)));
  }
  scope_ = outer;
  opset_ = outer_opset;
  if (ok()) ReturnAll(outputs);
}

std::vector<ValueId> Translator::Inline(const onnx::GraphProto& graph,
                                        const std::vector<ValueId>& inputs) {
  if (!ok()) return {};
  if (graph.input_size() != static_cast<int>(inputs.size())) {
    Fail(
        absl::StrCat("its subgraph has ", graph.input_size(), " inputs, expected ", inputs.size()));
    return {};
  }
  Scope body;
  body.parent = scope_;
  for (int i = 0; i < graph.input_size(); ++i) body.values[graph.input(i).name()] = inputs[i];
  Scope* outer = std::exchange(scope_, &body);
  AddInitializers(graph);
  TranslateBody(graph.node());
  std::vector<ValueId> outputs;
  for (const onnx::ValueInfoProto& output : graph.output()) {
    if (!ok()) break;
    outputs.push_back(Lookup(output.name()));
    if (outputs.back() == kNoValue) {
      Fail(absl::StrCat("its subgraph computes no output '", output.name(), "'"));
    }
  }
  scope_ = outer;
  return ok() ? outputs : std::vector<ValueId>{};
}

ValueId Translator::Lookup(const std::string& name) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (auto it = scope->values.find(name); it != scope->values.end()) return it->second;
    auto it = scope->initializers.find(name);
    if (it != scope->initializers.end()) return MaterializeConstant(scope, name, *it->second);
  }
  return kNoValue;
}

ValueId Translator::Find(const std::string& name) { return ok() ? Lookup(name) : kNoValue; }

bool Translator::HasInput(int index) const {
  if (index >= node_->input_size() || node_->input(index).empty()) return false;
  auto it = scope_->values.find(node_->input(index));  // absent in the call of a function?
  return it == scope_->values.end() || it->second != kNoValue;
}

bool Translator::WantsOutput(int index) const {
  return index < node_->output_size() && !node_->output(index).empty();
}

ValueId Translator::Input(int index) {
  if (!ok() || !HasInput(index)) return kNoValue;
  const ValueId value = Lookup(node_->input(index));
  if (value == kNoValue) {
    Fail(absl::StrCat("reads '", node_->input(index),
                      "', which is neither an input, an initializer nor computed before"));
  }
  return value;
}

ValueId Translator::Required(int index) {
  if (ok() && !HasInput(index)) Fail(absl::StrCat("input ", index, " is missing"));
  return Input(index);
}

const Dims& Translator::DimsOf(ValueId value) const {
  return value == kNoValue ? kNoDims : types_[value].dims;
}

DType Translator::DTypeOf(ValueId value) const {
  return value == kNoValue ? DType::kInvalid : types_[value].dtype;
}

const onnx::AttributeProto* Translator::Attribute(const std::string& name) const {
  for (const onnx::AttributeProto& attribute : node_->attribute()) {
    if (attribute.name() != name) continue;
    if (attribute.ref_attr_name().empty()) return &attribute;
    for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      auto it = scope->attributes.find(attribute.ref_attr_name());
      if (it != scope->attributes.end()) return it->second;
    }
    return nullptr;
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

std::vector<double> Translator::Floats(const std::string& name) {
  const onnx::AttributeProto* attribute = Attribute(name);
  if (attribute == nullptr) return {};
  return {attribute->floats().begin(), attribute->floats().end()};
}

std::vector<std::string> Translator::Strings(const std::string& name) {
  const onnx::AttributeProto* attribute = Attribute(name);
  if (attribute == nullptr) return {};
  return {attribute->strings().begin(), attribute->strings().end()};
}

std::vector<int64_t> Translator::IntsOf(const std::string& attribute, int index) {
  return HasInput(index) ? ConstantInts(index) : Ints(attribute, {});
}

int64_t Translator::Axis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    Fail(absl::StrCat("axis ", axis, " is not in ", -rank, "..", rank - 1));
    return 0;
  }
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> Translator::Axes(std::vector<int64_t> axes, int rank) {
  std::set<int64_t> seen;
  for (int64_t& axis : axes) {
    axis = Axis(axis, rank);
    if (ok() && !seen.insert(axis).second) Fail(absl::StrCat("axis ", axis, " is named twice"));
  }
  return axes;
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
  if (Fold(*def, types, inputs, &results) || !ok()) return results;
  const std::string base = node_ == nullptr           ? op
                           : !node_->name().empty()   ? node_->name()
                           : node_->output_size() > 0 ? node_->output(0)
                                                      : op;
  const std::string name = Unique(base);
  for (int k = 0; k < outputs; ++k) {
    results[k] = graph_->AddValue({.name = k == 0 ? name : Unique(absl::StrCat(name, ":", k))});
    types_.push_back(types.outputs[k]);
  }
  // Attributes as given, not as canonicalized for the symbolic batch.
  graph_->AddNode({.name = name,
                   .op = op,
                   .attributes = std::move(attributes),
                   .inputs = inputs,
                   .outputs = results});
  return results;
}

void Translator::Return(ValueId value, int index) {
  if (!ok() || !WantsOutput(index)) return;
  if (value == kNoValue) {
    Fail("gave no result");
    return;
  }
  const std::string& name = node_->output(index);
  if (scope_->initializers.count(name) > 0 || !scope_->values.emplace(name, value).second) {
    Fail(absl::StrCat("output '", name, "' has its value already"));
  }
}

void Translator::ReturnAll(const std::vector<ValueId>& values) {
  for (int k = 0; k < node_->output_size() && ok(); ++k) {
    if (!WantsOutput(k)) continue;
    if (k >= static_cast<int>(values.size())) {
      Fail(absl::StrCat("has ", node_->output_size(), " outputs, expected ", values.size()));
      return;
    }
    Return(values[k], k);
  }
}

}  // namespace espalier::onnx_import
