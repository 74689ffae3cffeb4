#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/rewrite/rule.h"

namespace espalier {
namespace {

class ExampleBuilder {
 public:
  ExampleBuilder(const OpRegistry& registry, const RewriteRule& rule, bool with_optional)
      : registry_(registry), rule_(rule), with_optional_(with_optional) {}

  absl::StatusOr<Graph> Run() {
    graph_.name = rule_.name;
    values_.assign(rule_.values.size(), kNoValue);
    for (const RuleNode& node : rule_.pattern) {
      for (int v : node.inputs) {
        if (v == kNoValue || values_[v] != kNoValue) continue;
        if (absl::Status status = AddInput(v); !status.ok()) return status;
      }
      if (absl::Status status = AddNode(node); !status.ok()) return status;
    }
    for (int v : rule_.outputs) graph_.outputs.emplace_back(rule_.values[v].name, values_[v]);
    if (absl::Status status = BindAndInfer(registry_, 1, &graph_); !status.ok()) {
      return Error(status.message());
    }
    return std::move(graph_);
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the example of rule '", rule_.name, "': ", what));
  }

  absl::Status AddInput(int v) {
    const RuleValue& value = rule_.values[v];
    if (value.optional && !with_optional_) return absl::OkStatus();
    Value made{.name = value.name, .type = {DType::kF32, {}}, .kind = ValueKind::kConstant};
    if (value.is_number) {
      auto number = rule_.example.numbers.find(value.name);
      if (!value.number.has_value() && number == rule_.example.numbers.end()) {
        return Error(absl::StrCat("expected a number for '", value.name, "'"));
      }
      const float f = static_cast<float>(value.number.has_value() ? *value.number : number->second);
      made.constant.assign(reinterpret_cast<const char*>(&f), sizeof(f));
    } else {
      auto type = rule_.example.types.find(value.name);
      if (type == rule_.example.types.end()) {
        return Error(absl::StrCat("expected a type for '", value.name, "'"));
      }
      made.type = type->second;
      if (value.causal && made.type.dims.size() < 2) {
        return Error(absl::StrCat("expected two dimensions of mask '", value.name, "'"));
      }
      if (value.causal) {
        made.constant = Causal(made.type);
      } else {
        const bool trained = IsFloat(made.type.dtype) && !value.loses_gradient && HasGradient(v);
        made.kind = trained ? ValueKind::kParameter : ValueKind::kInput;
      }
    }
    values_[v] = graph_.AddValue(std::move(made));
    return absl::OkStatus();
  }

  // Whether every reader of value `v` gives it a gradient, or counts it as a constant.
  bool HasGradient(int v) const {
    for (const std::vector<RuleNode>* side : {&rule_.pattern, &rule_.replacement}) {
      for (const RuleNode& node : *side) {
        const OpDef* def = registry_.Find(node.op);
        if (def == nullptr || !def->gradient.has_value()) continue;
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          if (node.inputs[i] == v && !IsNamed(*def, i)) return false;
        }
      }
    }
    return true;
  }

  // Whether an operator's gradient names its input `i`; a variadic input by its first index.
  static bool IsNamed(const OpDef& def, size_t i) {
    const int index = static_cast<int>(std::min(i, def.inputs.size() - 1));
    const auto names = [index](const std::vector<int>& list) {
      return std::find(list.begin(), list.end(), index) != list.end();
    };
    return names(def.gradient->differentiable) || names(def.gradient->constants);
  }

  static std::string Causal(const TensorType& type) {
    std::string bytes(type.bytes(), '\0');
    const int64_t columns = type.dims.back(), rows = type.dims[type.dims.size() - 2];
    const float hidden = -1e9f;
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      const bool seen = i % columns <= i / columns % rows;
      if (type.dtype == DType::kBool) bytes[i] = seen ? 1 : 0;
      if (type.dtype == DType::kF32 && !seen) std::memcpy(&bytes[4 * i], &hidden, sizeof(hidden));
    }
    return bytes;
  }

  absl::Status AddNode(const RuleNode& wanted) {
    const std::string& name =
        rule_.values[*std::max_element(wanted.outputs.begin(), wanted.outputs.end())].name;
    Node node{.name = name, .op = wanted.op};
    for (const auto& [key, value] : rule_.example.attributes) {
      if (key.rfind(name + ".", 0) == 0) node.attributes.Set(key.substr(name.size() + 1), value);
    }
    for (const auto& [key, value] : rule_.example.numbers) {
      if (key.rfind(name + ".", 0) == 0) node.attributes.Set(key.substr(name.size() + 1), value);
    }
    for (const RuleAttribute& attribute : wanted.attributes) {
      absl::StatusOr<AttributeValue> value = AttributeOf(wanted, attribute);
      if (!value.ok()) return value.status();
      node.attributes.Set(attribute.name, *std::move(value));
    }
    for (int v : wanted.inputs) node.inputs.push_back(v == kNoValue ? kNoValue : values_[v]);
    for (int v : wanted.outputs) {
      node.outputs.push_back(
          graph_.AddValue({.name = v == kNoValue ? absl::StrCat(name, ":", node.outputs.size())
                                                 : rule_.values[v].name}));
      if (v != kNoValue) values_[v] = node.outputs.back();
    }
    graph_.AddNode(std::move(node));
    return absl::OkStatus();
  }

  absl::StatusOr<AttributeValue> AttributeOf(const RuleNode& node, const RuleAttribute& attribute) {
    AttributeKind kind = AttributeKind::kString;
    for (const AttributeSpec& spec : registry_.Find(node.op)->attributes) {
      if (spec.name == attribute.name) kind = spec.kind;
    }
    if (kind == AttributeKind::kString) return AttributeValue(attribute.word);
    if (kind == AttributeKind::kBool) return AttributeValue(attribute.word == "true");
    std::vector<double> numbers;
    for (const RuleTerm& term : attribute.terms) {
      const bool last = term.variable() == "last";
      const std::optional<double> number =
          last ? std::optional<double>(-1) : term.Evaluate(rule_.example.numbers);
      if (!number.has_value()) {
        return Error(absl::StrCat("expected a number for '", term.variable(), "'"));
      }
      if (std::abs(*number) >= 0x1p53) return Error("expected smaller numbers");
      numbers.push_back(*number);
    }
    const std::vector<int64_t> integers(numbers.begin(), numbers.end());
    switch (kind) {
      case AttributeKind::kInt:
        return AttributeValue(integers[0]);
      case AttributeKind::kInts:
        return AttributeValue(integers);
      case AttributeKind::kFloats:
        return AttributeValue(numbers);
      default:
        return AttributeValue(numbers[0]);
    }
  }

  const OpRegistry& registry_;
  const RewriteRule& rule_;
  const bool with_optional_;
  Graph graph_;
  std::vector<ValueId> values_;
};

}  // namespace

absl::StatusOr<Graph> ExampleGraph(const OpRegistry& registry, const RewriteRule& rule,
                                   bool with_optional) {
  return ExampleBuilder(registry, rule, with_optional).Run();
}

}  // namespace espalier
