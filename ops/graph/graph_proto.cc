#include "ops/graph/graph_proto.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr uint32_t kFormatVersion = 1;
constexpr size_t kMaxNameBytes = 512, kMaxSourceBytes = 1024;

v1::ValueKind KindToProto(ValueKind kind) {
  switch (kind) {
    case ValueKind::kInput:
      return v1::INPUT;
    case ValueKind::kParameter:
      return v1::PARAMETER;
    case ValueKind::kState:
      return v1::STATE;
    case ValueKind::kComputed:
      return v1::COMPUTED;
    case ValueKind::kConstant:
      return v1::CONSTANT;
  }
  return v1::VALUE_KIND_UNSPECIFIED;
}

v1::Attribute ToProtoAttribute(const AttributeValue& value) {
  v1::Attribute out;
  if (const auto* i = std::get_if<int64_t>(&value)) {
    out.set_i(*i);
  } else if (const auto* d = std::get_if<double>(&value)) {
    out.set_f(*d);
  } else if (const auto* b = std::get_if<bool>(&value)) {
    out.set_b(*b);
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    out.set_s(*s);
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    out.mutable_ints()->mutable_values()->Assign(ints->begin(), ints->end());
  } else if (const auto* floats = std::get_if<std::vector<double>>(&value)) {
    out.mutable_floats()->mutable_values()->Assign(floats->begin(), floats->end());
  }
  return out;
}

absl::Status CheckName(const std::string& what, int index, const std::string& name,
                       std::set<std::string>* seen) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(what, "[", index, "] has a name of ",
                                                   name.size(), " bytes, expected 1 to ",
                                                   kMaxNameBytes));
  }
  if (!seen->insert(name).second) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "[", index, "]: the name '", name, "' is used twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> ValueFromProto(const v1::Value& message) {
  Value value;
  value.name = message.name();
  const auto fail = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", message.name(), "': ", what));
  };
  switch (message.kind()) {
    case v1::INPUT:
      value.kind = ValueKind::kInput;
      break;
    case v1::PARAMETER:
      value.kind = ValueKind::kParameter;
      break;
    case v1::STATE:
      value.kind = ValueKind::kState;
      break;
    case v1::COMPUTED:
      value.kind = ValueKind::kComputed;
      break;
    case v1::CONSTANT:
      value.kind = ValueKind::kConstant;
      break;
    default:
      return fail(absl::StrCat("field 'kind' is ", message.kind(),
                               ", expected INPUT, PARAMETER, STATE, COMPUTED or CONSTANT"));
  }
  value.type.dtype = FromProto(message.type().dtype());
  if (value.type.dtype == DType::kInvalid && value.kind != ValueKind::kComputed) {
    return fail("field 'type.dtype' is missing or unknown");
  }
  for (int64_t dim : message.type().dims()) {
    if (dim < -1 || dim > (int64_t{1} << 46)) {
      return fail(absl::StrCat("field 'type.dims' holds ", dim));
    }
    value.type.dims.push_back(dim);
  }
  value.trainable = !message.frozen();
  if (!v1::Initializer::Kind_IsValid(message.initializer().kind())) {
    return fail("field 'initializer.kind' is unknown");
  }
  if (message.initializer().kind() == v1::Initializer::STORED) {
    return fail("field 'initializer.kind' is STORED, which a graph cannot be; give 'data'");
  }
  value.initializer = FromProto(message.initializer());
  value.constant = message.data();
  if (value.kind == ValueKind::kConstant && value.constant.empty()) {
    int64_t elements = 1;
    for (int64_t dim : value.type.dims) elements = dim == 0 ? 0 : elements;
    if (elements != 0) return fail("is a constant without 'data'");
  }
  return value;
}

absl::StatusOr<Node> NodeFromProto(const OpRegistry& registry, const v1::Node& message,
                                   int num_values) {
  Node node;
  node.name = message.name();
  node.op = message.op();
  node.source = message.source();
  const auto fail = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(node), ": ", what));
  };
  if (node.source.size() > kMaxSourceBytes) {
    node.source.clear();
    return fail(absl::StrCat("field 'source' has ", message.source().size(),
                             " bytes, expected at most ", kMaxSourceBytes));
  }
  const OpDef* def = registry.Find(node.op);
  if (def == nullptr || !ForwardName(node.op).empty()) {
    return fail("unknown operator; docs/reference/operators.md lists those that there are");
  }
  for (int32_t input : message.inputs()) {
    if (input < -1 || input >= num_values) {
      return fail(absl::StrCat("input index ", input, " is not in 0..", num_values - 1));
    }
    node.inputs.push_back(input);
  }
  for (int32_t output : message.outputs()) {
    if (output < 0 || output >= num_values) {
      return fail(absl::StrCat("output index ", output, " is not in 0..", num_values - 1));
    }
    node.outputs.push_back(output);
  }
  absl::StatusOr<Attributes> attributes = AttributesFromProto(message.attributes());
  if (!attributes.ok()) return fail(attributes.status().message());
  node.attributes = *std::move(attributes);
  return node;
}

// Every input is computed before, and every computed tensor has one producer.
absl::Status CheckOrder(const Graph& graph) {
  std::vector<bool> ready(graph.values().size());
  for (size_t v = 0; v < ready.size(); ++v) {
    ready[v] = graph.value(static_cast<ValueId>(v)).kind != ValueKind::kComputed;
  }
  for (const Node& node : graph.nodes()) {
    for (ValueId v : node.inputs) {
      if (v != kNoValue && !ready[v]) {
        return absl::InvalidArgumentError(
            absl::StrCat(Describe(node), " reads tensor '", graph.value(v).name,
                         "' before a node computes it; nodes must be in topological order"));
      }
    }
    for (ValueId v : node.outputs) {
      if (ready[v]) {
        return absl::InvalidArgumentError(absl::StrCat(Describe(node), " computes tensor '",
                                                       graph.value(v).name,
                                                       "', which has its value already"));
      }
      ready[v] = true;
    }
  }
  for (size_t v = 0; v < ready.size(); ++v) {
    if (!ready[v]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", graph.value(static_cast<ValueId>(v)).name, "' is computed by no node"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

v1::DataType ToProto(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::F32;
    case DType::kBF16:
      return v1::BF16;
    case DType::kF16:
      return v1::F16;
    case DType::kI32:
      return v1::I32;
    case DType::kI64:
      return v1::I64;
    case DType::kBool:
      return v1::BOOL;
    case DType::kI8:
      return v1::I8;
    case DType::kU8:
      return v1::U8;
    case DType::kInvalid:
      break;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

DType FromProto(v1::DataType dtype) {
  switch (dtype) {
    case v1::F32:
      return DType::kF32;
    case v1::BF16:
      return DType::kBF16;
    case v1::F16:
      return DType::kF16;
    case v1::I32:
      return DType::kI32;
    case v1::I64:
      return DType::kI64;
    case v1::BOOL:
      return DType::kBool;
    case v1::I8:
      return DType::kI8;
    case v1::U8:
      return DType::kU8;
    default:
      return DType::kInvalid;
  }
}

void AttributesToProto(const Attributes& attributes,
                       google::protobuf::Map<std::string, v1::Attribute>* out) {
  for (const auto& [name, value] : attributes.values()) (*out)[name] = ToProtoAttribute(value);
}

absl::StatusOr<Attributes> AttributesFromProto(
    const google::protobuf::Map<std::string, v1::Attribute>& map) {
  Attributes attributes;
  for (const auto& [name, value] : map) {
    switch (value.value_case()) {
      case v1::Attribute::kI:
        attributes.Set(name, static_cast<int64_t>(value.i()));
        break;
      case v1::Attribute::kF:
        attributes.Set(name, value.f());
        break;
      case v1::Attribute::kB:
        attributes.Set(name, value.b());
        break;
      case v1::Attribute::kS:
        attributes.Set(name, value.s());
        break;
      case v1::Attribute::kInts:
        attributes.Set(
            name, std::vector<int64_t>(value.ints().values().begin(), value.ints().values().end()));
        break;
      case v1::Attribute::kFloats:
        attributes.Set(name, std::vector<double>(value.floats().values().begin(),
                                                 value.floats().values().end()));
        break;
      case v1::Attribute::VALUE_NOT_SET:
        return absl::InvalidArgumentError(absl::StrCat("attribute '", name, "' has no value"));
    }
  }
  return attributes;
}

v1::Initializer ToProto(const Initializer& initializer) {
  v1::Initializer out;
  out.set_kind(static_cast<v1::Initializer::Kind>(initializer.kind));
  out.set_scale(initializer.scale);
  out.set_mean(initializer.mean);
  return out;
}

Initializer FromProto(const v1::Initializer& message) {
  return {static_cast<Initializer::Kind>(message.kind()), message.scale(), message.mean()};
}

v1::Graph ToProto(const Graph& graph) {
  v1::Graph out;
  out.set_format_version(kFormatVersion);
  out.set_name(graph.name);
  for (const Value& value : graph.values()) {
    v1::Value* message = out.add_values();
    message->set_name(value.name);
    message->mutable_type()->set_dtype(ToProto(value.type.dtype));
    message->mutable_type()->mutable_dims()->Assign(value.type.dims.begin(), value.type.dims.end());
    message->set_kind(KindToProto(value.kind));
    message->set_frozen(!value.trainable);
    *message->mutable_initializer() = ToProto(value.initializer);
    message->set_data(value.constant);
  }
  for (const Node& node : graph.nodes()) {
    v1::Node* message = out.add_nodes();
    message->set_name(node.name);
    message->set_op(node.op);
    message->set_source(node.source);
    AttributesToProto(node.attributes, message->mutable_attributes());
    message->mutable_inputs()->Assign(node.inputs.begin(), node.inputs.end());
    message->mutable_outputs()->Assign(node.outputs.begin(), node.outputs.end());
  }
  for (const auto& [name, value] : graph.outputs) {
    v1::GraphOutput* message = out.add_outputs();
    message->set_name(name);
    message->set_value(value);
  }
  for (const auto& [key, value] : graph.metadata) (*out.mutable_metadata())[key] = value;
  return out;
}

absl::StatusOr<Graph> FromProto(const OpRegistry& registry, const v1::Graph& message) {
  if (message.format_version() != kFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "graph format version is ", message.format_version(), ", expected ", kFormatVersion));
  }
  Graph graph;
  graph.name = message.name();
  std::set<std::string> value_names, node_names;
  for (int i = 0; i < message.values_size(); ++i) {
    absl::Status named = CheckName("values", i, message.values(i).name(), &value_names);
    if (!named.ok()) return named;
    absl::StatusOr<Value> value = ValueFromProto(message.values(i));
    if (!value.ok()) return value.status();
    graph.AddValue(*std::move(value));
  }
  for (int i = 0; i < message.nodes_size(); ++i) {
    absl::Status named = CheckName("nodes", i, message.nodes(i).name(), &node_names);
    if (!named.ok()) return named;
    absl::StatusOr<Node> node = NodeFromProto(registry, message.nodes(i), message.values_size());
    if (!node.ok()) return node.status();
    graph.AddNode(*std::move(node));
  }
  for (const v1::GraphOutput& output : message.outputs()) {
    if (output.value() < 0 || output.value() >= message.values_size()) {
      return absl::InvalidArgumentError(absl::StrCat("output '", output.name(), "': value index ",
                                                     output.value(), " is not in 0..",
                                                     message.values_size() - 1));
    }
    graph.outputs.emplace_back(output.name(), output.value());
  }
  for (const auto& [key, value] : message.metadata()) graph.metadata[key] = value;
  if (absl::Status status = CheckOrder(graph); !status.ok()) return status;
  return graph;
}

}  // namespace espalier
