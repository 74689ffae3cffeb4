#include "ops/rewrite/match.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "ops/rewrite/rule_check.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

constexpr int kMostSiblings = 32;  // candidates tried per sibling

// Exporters write numbers with six digits or more. Sizes match exactly.
bool Agree(double a, double b) {
  const bool integers = a == std::floor(a) && b == std::floor(b) && std::abs(a) < 0x1p53;
  if (integers) return a == b;
  return a == b || std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b));
}

std::optional<double> ElementAt(const Value& value, int64_t i) {
  const size_t size = SizeOf(value.type.dtype);
  if (value.kind != ValueKind::kConstant || (i + 1) * size > value.constant.size()) return {};
  const char* bytes = value.constant.data() + i * size;
  if (value.type.dtype == DType::kF32) {
    float number;
    std::memcpy(&number, bytes, sizeof(number));
    return number;
  }
  if (IsNarrow(value.type.dtype)) {
    uint16_t bits;
    std::memcpy(&bits, bytes, sizeof(bits));
    return NarrowToF32(value.type.dtype, bits);
  }
  if (value.type.dtype == DType::kBool) return *bytes != 0 ? 1 : 0;
  return {};
}

// Whether a constant is a causal mask: hides exactly what lies right of the diagonal.
bool IsCausal(const Value& value) {
  constexpr double kHides = -1e9;
  const Dims& dims = value.type.dims;
  if (dims.size() < 2) return false;
  const bool visible = value.type.dtype == DType::kBool;
  const int64_t columns = dims.back(), rows = dims[dims.size() - 2];
  const int64_t elements = value.type.num_elements();
  for (int64_t i = 0; i < elements; ++i) {
    const std::optional<double> element = ElementAt(value, i);
    if (!element.has_value()) return false;
    const bool seen = i % columns <= i / columns % rows;
    if (visible ? (*element != 0) != seen : seen ? *element != 0 : !(*element <= kHides)) {
      return false;
    }
  }
  return elements > 0;
}

// One attempt: a root node, and an operand order for each commutative node.
class Matcher {
 public:
  Matcher(const OpRegistry& registry, const GraphIndex& index, const RewriteRule& rule)
      : registry_(registry), index_(index), graph_(index.graph()), rule_(rule) {
    for (size_t n = 0; n < rule.pattern.size(); ++n) {
      const RuleNode& node = rule.pattern[n];
      const bool commutes = (node.op == "add" || node.op == "multiply") &&
                            node.inputs.size() == 2 && node.inputs[0] != node.inputs[1];
      bit_.push_back(commutes ? 1u << commuting_ : 0);
      if (commutes) ++commuting_;
    }
    siblings_ = Siblings(rule);
    pick_of_.assign(rule.pattern.size(), -1);
    for (size_t s = 0; s < siblings_.size(); ++s) pick_of_[siblings_[s]] = static_cast<int>(s);
  }

  // One for each choice of siblings.
  std::vector<Match> At(NodeId root) {
    std::vector<Match> matches;
    picks_.assign(siblings_.size(), 0);
    while (true) {
      there_are_.assign(siblings_.size(), 0);
      for (unsigned swapped = 0; swapped < (1u << commuting_); ++swapped) {
        if (!Try(root, swapped)) continue;
        matches.push_back(match_);
        break;
      }
      // Siblings are chosen in this order; after a change the later ones start over.
      size_t s = siblings_.size();
      while (s > 0 && picks_[s - 1] + 1 >= there_are_[s - 1]) picks_[--s] = 0;
      if (s == 0) return matches;
      ++picks_[s - 1];
    }
  }

 private:
  bool Try(NodeId root, unsigned swapped) {
    match_ = {};
    match_.nodes.assign(rule_.pattern.size(), kNoNode);
    match_.values.assign(rule_.values.size(), kNoValue);
    absent_.assign(rule_.values.size(), false);
    match_.nodes.back() = root;
    for (size_t n = rule_.pattern.size(); n-- > 0;) {
      if (!MatchNode(n, (swapped & bit_[n]) != 0)) return false;
    }
    return Shapes() && Closed() && Trained() && Acyclic() && Replace();
  }

  bool MatchNode(size_t n, bool swapped) {
    const RuleNode& wanted = rule_.pattern[n];
    NodeId& id = match_.nodes[n];
    if (id == kNoNode) {
      for (int v : wanted.outputs) {
        if (v != kNoValue && match_.values[v] != kNoValue) {
          id = graph_.value(match_.values[v]).producer;
        }
      }
    }
    if (id == kNoNode) id = PickSibling(n);
    if (id == kNoNode) return false;
    const Node& node = graph_.node(id);
    if (node.op != wanted.op || node.outputs.size() != wanted.outputs.size()) return false;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (wanted.outputs[k] == kNoValue) {
        if (!Unread(node.outputs[k])) return false;
      } else if (!Bind(wanted.outputs[k], node.outputs[k])) {
        return false;
      }
    }
    for (size_t i = 0; i < std::max(wanted.inputs.size(), node.inputs.size()); ++i) {
      const size_t at = swapped ? 1 - i : i;
      const int v = i < wanted.inputs.size() ? wanted.inputs[i] : kNoValue;
      const ValueId found = at < node.inputs.size() ? node.inputs[at] : kNoValue;
      if (v == kNoValue ? found != kNoValue : !Bind(v, found)) return false;
      if (v != kNoValue && rule_.values[v].is_number && !FitsBeside(found, node)) return false;
    }
    return AttributesFit(wanted, node);
  }

  // Finds a node that reads what others of the pattern read. It must precede later siblings, so
  // that each set of equal ones is found once.
  NodeId PickSibling(size_t n) {
    const int s = pick_of_[n];
    if (s < 0) return kNoNode;
    const RuleNode& wanted = rule_.pattern[n];
    const NodeId before = s == 0 ? match_.nodes.back() : match_.nodes[siblings_[s - 1]];
    NodeId picked = kNoNode;
    int found = 0;
    for (size_t i = 0; i < wanted.inputs.size(); ++i) {
      const int v = wanted.inputs[i];
      if (v == kNoValue || match_.values[v] == kNoValue || rule_.values[v].is_number) continue;
      for (const auto& [reader, input] : index_.Readers(match_.values[v])) {
        if (reader >= before || input != static_cast<int>(i) || Inside(reader)) continue;
        if (graph_.node(reader).op != wanted.op || found == kMostSiblings) continue;
        if (found++ == picks_[s]) picked = reader;
      }
      break;
    }
    there_are_[s] = std::max(there_are_[s], found);
    return picked;
  }

  bool Unread(ValueId v) const {
    return v == kNoValue || (index_.Readers(v).empty() && !index_.IsOutput(v));
  }

  // A constant of one element must not add dimensions.
  bool FitsBeside(ValueId number, const Node& node) const {
    const size_t rank = graph_.value(number).type.dims.size();
    return rank == 0 || std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
             return v != kNoValue && v != number && graph_.value(v).type.dims.size() >= rank;
           });
  }

  bool Bind(int v, ValueId found) {
    const RuleValue& wanted = rule_.values[v];
    if (found == kNoValue) {
      if (!wanted.optional || match_.values[v] != kNoValue) return false;
      absent_[v] = true;
      return true;
    }
    if (absent_[v]) return false;
    if (match_.values[v] != kNoValue) return match_.values[v] == found;
    match_.values[v] = found;
    const Value& value = graph_.value(found);
    if (wanted.causal && !IsCausal(value)) return false;
    if (!wanted.is_number) return true;
    const std::optional<double> number = ElementAt(value, 0);
    if (value.type.num_elements() != 1 || !number.has_value()) return false;
    if (wanted.number.has_value() && !Agree(*wanted.number, *number)) return false;
    return Take(wanted.name, *number);
  }

  bool Take(const std::string& variable, double number) {
    auto [it, inserted] = match_.numbers.emplace(variable, number);
    return inserted || Agree(it->second, number);
  }

  bool AttributesFit(const RuleNode& wanted, const Node& node) {
    const OpDef& def = *registry_.Find(node.op);
    for (const AttributeSpec& spec : def.attributes) {
      auto named = std::find_if(wanted.attributes.begin(), wanted.attributes.end(),
                                [&](const RuleAttribute& a) { return a.name == spec.name; });
      auto found = node.attributes.values().find(spec.name);
      if (named != wanted.attributes.end()) {
        if (found == node.attributes.values().end() || !Fits(*named, found->second, node)) {
          return false;
        }
      } else if (!wanted.any_others && spec.default_value.has_value()) {
        if (found != node.attributes.values().end() && found->second != *spec.default_value) {
          return false;
        }
      }
    }
    return true;
  }

  bool Fits(const RuleAttribute& wanted, const AttributeValue& found, const Node& node) {
    if (wanted.kind == RuleAttribute::kWord) {
      if (const auto* word = std::get_if<std::string>(&found)) return *word == wanted.word;
      const auto* flag = std::get_if<bool>(&found);
      return flag != nullptr && *flag == (wanted.word == "true");
    }
    std::vector<double> numbers;
    if (const auto* i = std::get_if<int64_t>(&found)) numbers = {static_cast<double>(*i)};
    if (const auto* d = std::get_if<double>(&found)) numbers = {*d};
    if (const auto* list = std::get_if<std::vector<int64_t>>(&found)) {
      numbers.assign(list->begin(), list->end());
    }
    if (const auto* list = std::get_if<std::vector<double>>(&found)) numbers = *list;
    if (numbers.size() != wanted.terms.size()) return false;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const std::string variable = wanted.terms[i].variable();
      if (variable == "last") {
        if (node.inputs.empty() || node.inputs[0] == kNoValue) return false;
        const double rank = static_cast<double>(graph_.value(node.inputs[0]).type.dims.size());
        if (numbers[i] != -1 && numbers[i] != rank - 1) return false;
      } else if (!variable.empty()) {
        if (!Take(variable, numbers[i])) return false;
      } else if (!Agree(wanted.terms[i].literal().value_or(NAN), numbers[i])) {
        return false;
      }
    }
    return true;
  }

  bool Shapes() {
    for (size_t v = 0; v < rule_.values.size(); ++v) {
      const RuleShape& shape = rule_.values[v].shape;
      if (!shape.given || match_.values[v] == kNoValue) continue;
      const TensorType& type = graph_.value(match_.values[v]).type;
      if (shape.dtype != DType::kInvalid && shape.dtype != type.dtype) return false;
      const size_t own = shape.dims.size(), rank = type.dims.size();
      if (shape.any_leading ? rank < own : rank != own) return false;
      const Dims leading(type.dims.begin(), type.dims.end() - own);
      if (!shape.leading.empty()) {
        auto [it, inserted] = match_.leading.emplace(shape.leading, leading);
        if (!inserted && it->second != leading) return false;
      }
      for (size_t d = 0; d < own; ++d) {
        const int64_t size = type.dims[rank - own + d];
        const RuleShape::Dim& dim = shape.dims[d];
        if (dim.size >= 0 && dim.size != size) return false;
        if (!dim.variable.empty() && !Take(dim.variable, static_cast<double>(size))) return false;
      }
    }
    for (const RewriteRule::Requirement& wanted : rule_.requirements) {
      const std::optional<double> number = wanted.term.Evaluate(match_.numbers);
      if (!number.has_value()) return false;
      if (wanted.less ? !(*number < wanted.bound) : !(*number > wanted.bound)) return false;
    }
    return true;
  }

  bool Inside(NodeId id) const {
    return std::find(match_.nodes.begin(), match_.nodes.end(), id) != match_.nodes.end();
  }
  bool IsRuleOutput(int v) const {
    return std::find(rule_.outputs.begin(), rule_.outputs.end(), v) != rule_.outputs.end();
  }

  // Removed values are read nowhere else.
  bool Closed() const {
    for (const RuleNode& node : rule_.pattern) {
      for (int v : node.outputs) {
        if (v == kNoValue || IsRuleOutput(v)) continue;
        const ValueId value = match_.values[v];
        if (index_.IsOutput(value)) return false;
        for (const auto& [reader, input] : index_.Readers(value)) {
          if (!Inside(reader)) return false;
        }
      }
    }
    return true;
  }

  bool Trained() const {
    return std::none_of(rule_.inputs.begin(), rule_.inputs.end(), [&](int v) {
      return rule_.values[v].loses_gradient && match_.values[v] != kNoValue &&
             index_.IsTrained(match_.values[v]);
    });
  }

  // No input of the pattern depends on its outputs through other nodes.
  bool Acyclic() const {
    const auto [first, last] = std::minmax_element(match_.nodes.begin(), match_.nodes.end());
    if (rule_.outputs.size() == 1) return true;  // of the last node, on which nothing depends
    std::set<ValueId> after;
    for (int v : rule_.outputs) after.insert(match_.values[v]);
    for (NodeId id = *first; id < *last; ++id) {
      const Node& node = graph_.node(id);
      if (Inside(id) || std::none_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ValueId v) { return after.count(v) > 0; }))
        continue;
      after.insert(node.outputs.begin(), node.outputs.end());
    }
    return std::none_of(rule_.inputs.begin(), rule_.inputs.end(), [&](int v) {
      return match_.values[v] != kNoValue && after.count(match_.values[v]) > 0;
    });
  }

  // Infers the nodes of the replacement; fails if an operator refuses its operands.
  bool Replace() {
    match_.types.assign(rule_.values.size(), {});
    for (int v : rule_.inputs) {
      if (match_.values[v] != kNoValue) match_.types[v] = graph_.value(match_.values[v]).type;
    }
    for (const RuleNode& node : rule_.replacement) {
      NodeTypes types;
      if (node.copies >= 0) types.attributes = graph_.node(match_.nodes[node.copies]).attributes;
      const OpDef& def = *registry_.Find(node.op);
      for (const RuleAttribute& attribute : node.attributes) {
        if (!SetAttribute(def, attribute, &types.attributes)) return false;
      }
      for (int v : node.inputs) {
        types.inputs.push_back(v == kNoValue ? TensorType{} : TypeOf(v));
      }
      if (!InferNode(def, &types).ok() || types.outputs.size() != node.outputs.size()) return false;
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        const int v = node.outputs[k];
        if (v == kNoValue) continue;
        if (IsRuleOutput(v) && types.outputs[k] != graph_.value(match_.values[v]).type) {
          return false;
        }
        match_.types[v] = types.outputs[k];
      }
      match_.attributes.push_back(std::move(types.attributes));
    }
    return true;
  }

  TensorType TypeOf(int v) const {
    const bool number = rule_.values[v].is_number && match_.values[v] != kNoValue;
    return number ? graph_.value(match_.values[v]).type : match_.types[v];
  }

  bool SetAttribute(const OpDef& def, const RuleAttribute& attribute, Attributes* attributes) {
    AttributeKind kind = AttributeKind::kString;
    for (const AttributeSpec& spec : def.attributes) {
      if (spec.name == attribute.name) kind = spec.kind;
    }
    if (kind == AttributeKind::kString) {
      attributes->Set(attribute.name, attribute.word);
      return true;
    }
    if (kind == AttributeKind::kBool) {
      attributes->Set(attribute.name, attribute.word == "true");
      return true;
    }
    std::vector<double> numbers;
    for (const RuleTerm& term : attribute.terms) {
      const std::optional<double> number = term.Evaluate(match_.numbers);
      if (!number.has_value() || !std::isfinite(*number)) return false;
      numbers.push_back(*number);
    }
    std::vector<int64_t> integers;
    for (double number : numbers) {
      if (std::abs(number) < 0x1p53) integers.push_back(std::llround(number));
    }
    const bool integral = kind == AttributeKind::kInt || kind == AttributeKind::kInts;
    for (size_t i = 0; integral && i < numbers.size(); ++i) {
      if (integers.size() != numbers.size() || static_cast<double>(integers[i]) != numbers[i]) {
        return false;
      }
    }
    if (kind == AttributeKind::kInt) attributes->Set(attribute.name, integers[0]);
    if (kind == AttributeKind::kFloat) attributes->Set(attribute.name, numbers[0]);
    if (kind == AttributeKind::kInts) attributes->Set(attribute.name, integers);
    if (kind == AttributeKind::kFloats) attributes->Set(attribute.name, numbers);
    return true;
  }

  const OpRegistry& registry_;
  const GraphIndex& index_;
  const Graph& graph_;
  const RewriteRule& rule_;
  std::vector<unsigned> bit_;  // by node of the pattern: in `swapped`; 0 if it does not commute
  int commuting_ = 0;
  std::vector<int> siblings_;   // as Siblings
  std::vector<int> pick_of_;    // by node of the pattern: its place there, or -1
  std::vector<int> picks_;      // by sibling: which of the nodes that it may be
  std::vector<int> there_are_;  // likewise: how many there were
  Match match_;
  std::vector<bool> absent_;
};

}  // namespace

std::vector<Match> FindMatches(const OpRegistry& registry, const GraphIndex& index,
                               const RewriteRule& rule) {
  std::vector<Match> matches;
  const std::vector<NodeId>& roots = index.NodesOf(rule.pattern.back().op);
  if (roots.empty()) return matches;
  Matcher matcher(registry, index, rule);
  for (NodeId root : roots) {
    for (Match& match : matcher.At(root)) matches.push_back(std::move(match));
  }
  return matches;
}

std::vector<Match> FindMatches(const OpRegistry& registry, const Graph& graph,
                               const RewriteRule& rule) {
  return FindMatches(registry, GraphIndex(graph), rule);
}

}  // namespace espalier
