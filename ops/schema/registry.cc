#include "ops/schema/registry.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

// Refuses larger tensors, so that sizes computed from them cannot overflow.
constexpr int64_t kMaxElements = int64_t{1} << 46;
constexpr size_t kMaxRank = 8;

const char* KindName(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kInt:
      return "an integer";
    case AttributeKind::kFloat:
      return "a number";
    case AttributeKind::kBool:
      return "a bool";
    case AttributeKind::kString:
      return "a string";
    case AttributeKind::kInts:
      return "a list of integers";
    case AttributeKind::kFloats:
      return "a list of numbers";
  }
  return "unknown";
}

// Lossless conversions (integer to number or bool); returns false if the kind does not match.
bool Coerce(AttributeKind kind, AttributeValue* value) {
  switch (kind) {
    case AttributeKind::kInt:
      return std::holds_alternative<int64_t>(*value);
    case AttributeKind::kFloat:
      if (const auto* i = std::get_if<int64_t>(value)) *value = static_cast<double>(*i);
      return std::holds_alternative<double>(*value);
    case AttributeKind::kBool:
      if (const auto* i = std::get_if<int64_t>(value); i != nullptr && (*i == 0 || *i == 1)) {
        *value = *i == 1;
      }
      return std::holds_alternative<bool>(*value);
    case AttributeKind::kString:
      return std::holds_alternative<std::string>(*value);
    case AttributeKind::kInts:
      return std::holds_alternative<std::vector<int64_t>>(*value);
    case AttributeKind::kFloats:
      if (const auto* ints = std::get_if<std::vector<int64_t>>(value)) {
        *value = std::vector<double>(ints->begin(), ints->end());
      }
      return std::holds_alternative<std::vector<double>>(*value);
  }
  return false;
}

absl::Status CheckAttributes(const OpDef& def, Attributes* attributes) {
  for (const auto& [name, given] : attributes->values()) {
    const AttributeSpec* spec = nullptr;
    for (const AttributeSpec& candidate : def.attributes) {
      if (candidate.name == name) spec = &candidate;
    }
    if (spec == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "has no attribute '", name, "'; it takes: ",
          absl::StrJoin(def.attributes, ", ", [](std::string* out, const AttributeSpec& known) {
            absl::StrAppend(out, known.name);
          })));
    }
    AttributeValue value = given;
    if (!Coerce(spec->kind, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute '", name, "' must be ", KindName(spec->kind)));
    }
    attributes->Set(name, std::move(value));
  }
  for (const AttributeSpec& spec : def.attributes) {
    if (attributes->Has(spec.name)) continue;
    if (spec.default_value.has_value()) {
      AttributeValue value = *spec.default_value;
      Coerce(spec.kind, &value);
      attributes->Set(spec.name, std::move(value));
    } else if (spec.required) {
      return absl::InvalidArgumentError(absl::StrCat("attribute '", spec.name, "' is missing"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckArity(const OpDef& def, const std::vector<TensorType>& inputs) {
  size_t needed = 0;
  bool variadic = false;
  for (const Arity& arity : def.inputs) {
    if (!arity.optional) needed = &arity - def.inputs.data() + 1;
    variadic = variadic || arity.variadic;
  }
  if (inputs.size() < needed || (!variadic && inputs.size() > def.inputs.size())) {
    std::string expected =
        absl::StrJoin(def.inputs, ", ", [](std::string* out, const Arity& arity) {
          absl::StrAppend(out, arity.name, arity.variadic ? "..." : "", arity.optional ? "?" : "");
        });
    return absl::InvalidArgumentError(
        absl::StrCat("has ", inputs.size(), " inputs, expected (", expected, ")"));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Arity& arity = def.inputs[std::min(i, def.inputs.size() - 1)];
    if (inputs[i].dtype == DType::kInvalid && !arity.optional) {
      return absl::InvalidArgumentError(absl::StrCat("input '", arity.name, "' is missing"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const TensorType& type) {
  if (type.dims.size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", ToString(type.dims), " has more than ", kMaxRank, " dimensions"));
  }
  int64_t elements = 1;
  for (int64_t dim : type.dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ToString(type.dims), " has a dimension that is not bound"));
    }
    if (dim > 0 && elements > kMaxElements / dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ToString(type.dims), " has more than 2^46 elements"));
    }
    elements *= dim;
  }
  return absl::OkStatus();
}

absl::Status CheckType(const OpDef& def, const NodeTypes& types) {
  if (def.types.empty() || !types.has_input(0)) return absl::OkStatus();
  const DType found = types.inputs[0].dtype;
  if (std::find(def.types.begin(), def.types.end(), found) != def.types.end()) {
    return absl::OkStatus();
  }
  const std::string taken = absl::StrJoin(
      def.types, ", ", [](std::string* out, DType type) { absl::StrAppend(out, Name(type)); });
  return absl::InvalidArgumentError(absl::StrCat(def.name, ": input '", def.inputs[0].name,
                                                 "' has element type ", Name(found),
                                                 ", expected one of ", taken));
}

// Inputs that may stay f32 next to a 16-bit input 0 get its type.
NodeTypes WithoutWide(const OpDef& def, NodeTypes types) {
  if (!types.has_input(0) || !IsNarrow(types.inputs[0].dtype)) return types;
  for (size_t i = 1; i < types.inputs.size() && i < def.inputs.size(); ++i) {
    if (def.inputs[i].wide && types.inputs[i].dtype == DType::kF32) {
      types.inputs[i].dtype = types.inputs[0].dtype;
    }
  }
  return types;
}

OpDef GradientDef(const OpDef& forward) {
  OpDef def;
  def.name = forward.name + "_grad";
  def.doc = absl::StrCat("gradient of ", forward.name);
  def.inputs = {{"operands", /*optional=*/true, /*variadic=*/true}};
  def.num_outputs = -1;
  def.attributes = forward.attributes;
  def.random = forward.random;
  def.infer = [name = def.name](const NodeTypes&) -> absl::StatusOr<std::vector<TensorType>> {
    return absl::InvalidArgumentError(
        absl::StrCat("operator '", name, "' is made by differentiation and cannot be submitted"));
  };
  return def;
}

}  // namespace

void OpRegistry::Add(OpDef def) {
  const std::string name = def.name;
  if (def.has_gradient()) {
    OpDef gradient = GradientDef(def);
    std::string gradient_name = gradient.name;
    ops_.emplace(std::move(gradient_name), std::move(gradient));
  }
  if (!ops_.emplace(name, std::move(def)).second) {
    std::fprintf(stderr, "operator '%s' is registered twice\n", name.c_str());
    std::abort();
  }
}

const OpDef* OpRegistry::Find(absl::string_view name) const {
  auto it = ops_.find(std::string(name));
  return it == ops_.end() ? nullptr : &it->second;
}

std::vector<const OpDef*> OpRegistry::All() const {
  std::vector<const OpDef*> all;
  for (const auto& [name, def] : ops_) {
    if (ForwardName(name).empty()) all.push_back(&def);
  }
  return all;
}

absl::Status InferNode(const OpDef& def, NodeTypes* types) {
  if (absl::Status status = CheckArity(def, types->inputs); !status.ok()) return status;
  if (absl::Status status = CheckAttributes(def, &types->attributes); !status.ok()) return status;
  for (const TensorType& input : types->inputs) {
    if (absl::Status status = CheckSize(input); !status.ok()) return status;
  }
  if (absl::Status status = CheckType(def, *types); !status.ok()) return status;
  types->outputs.clear();
  absl::StatusOr<std::vector<TensorType>> outputs = def.infer(WithoutWide(def, *types));
  if (!outputs.ok()) return outputs.status();
  for (const TensorType& output : *outputs) {
    if (absl::Status status = CheckSize(output); !status.ok()) return status;
  }
  types->outputs = *std::move(outputs);
  if (def.canonicalize) def.canonicalize(*types, &types->attributes);
  return absl::OkStatus();
}

Cost ForwardCost(const OpDef& def, const NodeTypes& types) {
  if (def.cost) return def.cost(types);
  Cost cost;
  for (const TensorType& type : types.inputs) {
    if (type.dtype != DType::kInvalid) cost.bytes += static_cast<double>(type.bytes());
  }
  for (const TensorType& type : types.outputs) cost.bytes += static_cast<double>(type.bytes());
  return cost;
}

SplitRule SplitOf(const OpDef& def, const NodeTypes& types) {
  if (def.split) return def.split(types);
  SplitRule rule;
  for (const TensorType& type : types.inputs) {
    rule.inputs.emplace_back(type.dims.size(), kNotSplit);
  }
  for (const TensorType& type : types.outputs) {
    rule.outputs.emplace_back(type.dims.size(), kNotSplit);
  }
  return rule;
}

absl::string_view ForwardName(absl::string_view name) {
  return absl::ConsumeSuffix(&name, "_grad") ? name : absl::string_view();
}

}  // namespace espalier
