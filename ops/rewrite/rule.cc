#include "ops/rewrite/rule.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/rewrite/rule_check.h"
#include "ops/rewrite/rule_text.h"

namespace espalier {
namespace {

constexpr int64_t kMaxExample = 1 << 20;

// Parses one rule. The first error sticks, with its line.
class Parser {
 public:
  Parser(const OpRegistry& registry, const RuleText& text) : registry_(registry), text_(text) {
    rule_.name = text.name;
    line_ = text.number;
  }

  absl::StatusOr<RewriteRule> Run() {
    for (const RuleLine& line : text_.lines) {
      line_ = line.number;
      words_ = SplitWords(line.text);
      at_ = 0;
      replacement_ = line.replacement;
      ParseLine();
      if (ok() && at_ < words_.size()) Expected("the end of the line");
      if (!ok()) return status_;
    }
    line_ = text_.number;
    Conclude();
    if (!ok()) return status_;
    return std::move(rule_);
  }

 private:
  bool ok() const { return status_.ok(); }

  void Fail(absl::string_view what) {
    if (ok()) status_ = RuleError(line_, rule_.name, std::string(what));
  }
  void Expected(const std::string& what) {
    Fail(absl::StrCat("expected ", what, ", found ",
                      at_ < words_.size() ? absl::StrCat("'", words_[at_], "'")
                                          : std::string("the end of the line")));
  }

  std::string Peek(size_t ahead = 0) const {
    return at_ + ahead < words_.size() ? words_[at_ + ahead] : "";
  }
  bool Take(const std::string& word) {
    if (!ok() || Peek() != word) return false;
    ++at_;
    return true;
  }
  void Want(const std::string& word) {
    if (ok() && !Take(word)) Expected(absl::StrCat("'", word, "'"));
  }
  std::string Name(const std::string& what) {
    if (!ok()) return "";
    if (!IsName(Peek())) {
      Expected(what);
      return "";
    }
    return words_[at_++];
  }
  double Number() {
    if (!ok()) return 0;
    if (!IsNumber(Peek())) {
      Expected("a number");
      return 0;
    }
    char* end = nullptr;
    const double number = std::strtod(words_[at_].c_str(), &end);
    if (*end != '\0' || !std::isfinite(number)) {
      Expected("a number");
      return 0;
    }
    ++at_;
    return number;
  }
  int64_t Integer() {
    const double number = Number();
    if (ok() && (number != std::floor(number) || std::abs(number) >= 0x1p53)) {
      --at_;
      Expected("an integer");
    }
    return ok() ? static_cast<int64_t>(number) : 0;
  }

  int ValueOf(const std::string& name) {
    if (!ok()) return kNoValue;
    auto [it, inserted] = index_.emplace(name, static_cast<int>(rule_.values.size()));
    if (inserted) rule_.values.push_back({.name = name});
    return it->second;
  }

  void ParseLine() {
    const std::string first = Peek();
    // Words that could also be a value's name.
    const bool node = Peek(1) == "=" || Peek(1) == ",";
    if (node && first != "number") return ParseNode();
    if (first == "doc" || first == "choice") {
      ++at_;
      if (Peek().empty() || Peek()[0] != '"') return Expected("a quoted sentence");
      (first == "doc" ? rule_.doc : rule_.choice) = words_[at_++].substr(1);
    } else if (Take("shape")) {
      const int value = ValueOf(Name("a value"));
      Want(":");
      RuleShape shape = Shape();
      if (ok()) rule_.values[value].shape = std::move(shape);
    } else if (Take("mask")) {
      const int value = ValueOf(Name("a value"));
      if (ok()) rule_.values[value].causal = true;
    } else if (Take("number")) {
      const std::string name = Name("the name of a constant");
      const int value = ValueOf(name);
      if (!ok()) return;
      rule_.values[value].is_number = true;
      variables_.insert(name);
      if (Take("=")) rule_.values[value].number = Number();
    } else if (Take("let")) {
      const std::string name = Name("a name");
      Want("=");
      lets_[name] = Value(nullptr);
    } else if (Take("require")) {
      RewriteRule::Requirement requirement;
      requirement.term = Term(false);
      if (Peek() != "<" && Peek() != ">") return Expected("'<' or '>'");
      requirement.less = words_[at_++] == "<";
      requirement.bound = Number();
      rule_.requirements.push_back(std::move(requirement));
    } else if (Take("example")) {
      do ParseExample();
      while (Take(","));
    } else {
      Expected("a node 'y = op(x)', doc, choice, shape, mask, number, let, require or example");
    }
  }

  void ParseNode() {
    RuleNode node;
    do {
      const std::string name = Name("the name of a result");
      if (name == "_" && !replacement_) {
        node.outputs.push_back(kNoValue);
        continue;
      }
      if (name == "_") return Fail("expected a name for every result of the replacement");
      if (!(replacement_ ? made_ : matched_).insert(name).second) {
        return Fail(absl::StrCat("'", name, "' is computed twice"));
      }
      node.outputs.push_back(ValueOf(name));
    } while (Take(","));
    Want("=");
    node.op = Name("an operator");
    const OpDef* def = registry_.Find(node.op);
    if (ok() && def == nullptr) return Fail(absl::StrCat("unknown operator '", node.op, "'"));
    Want("(");
    while (ok() && Peek() != ")") {
      const std::string name = Name("an input or ')'");
      node.inputs.push_back(name == "_" ? kNoValue : ValueOf(name));
      read_[replacement_].insert(name);
      if (Take("?")) {
        if (name != "_" && ok() && !replacement_) rule_.values[node.inputs.back()].optional = true;
      }
      if (!Take(",")) break;
    }
    Want(")");
    if (Take("{")) {
      while (ok() && Peek() != "}") {
        ParseAttribute(*def, &node);
        if (!Take(",")) break;
      }
      Want("}");
    }
    if (ok()) CheckNode(*def, node);
    if (ok()) (replacement_ ? rule_.replacement : rule_.pattern).push_back(std::move(node));
  }

  void ParseAttribute(const OpDef& def, RuleNode* node) {
    if (Take("*")) {
      if (!replacement_) {
        node->any_others = true;
        return;
      }
      Want(":");
      const std::string from = Name("a value of the pattern");
      for (size_t n = 0; n < rule_.pattern.size(); ++n) {
        const std::vector<int>& outputs = rule_.pattern[n].outputs;
        auto it = index_.find(from);
        if (it == index_.end() || std::count(outputs.begin(), outputs.end(), it->second) == 0)
          continue;
        if (rule_.pattern[n].op == node->op) node->copies = static_cast<int>(n);
      }
      if (node->copies < 0) {
        Fail(absl::StrCat("expected a result of '", node->op, "' in the pattern, found '", from,
                          "'"));
      }
      return;
    }
    const std::string name = Name("an attribute or '*'");
    const AttributeSpec* spec = nullptr;
    std::string known;
    for (const AttributeSpec& candidate : def.attributes) {
      if (candidate.name == name) spec = &candidate;
      absl::StrAppend(&known, known.empty() ? "" : ", ", candidate.name);
    }
    if (ok() && spec == nullptr) {
      return Fail(absl::StrCat("operator '", node->op, "' has no attribute '", name,
                               "'; it takes: ", known));
    }
    Want(":");
    RuleAttribute attribute = Value(spec);
    attribute.name = name;
    node->attributes.push_back(std::move(attribute));
  }

  // `spec`, unless null, tells whether a name is a word or a variable.
  RuleAttribute Value(const AttributeSpec* spec) {
    RuleAttribute value;
    if (!ok()) return value;
    const bool binds = spec != nullptr && !replacement_;
    const bool word = spec == nullptr ? IsName(Peek()) && Peek(1).empty() && !IsVariable(Peek())
                                      : spec->kind == AttributeKind::kString ||
                                            spec->kind == AttributeKind::kBool;
    const bool list = spec != nullptr &&
                      (spec->kind == AttributeKind::kInts || spec->kind == AttributeKind::kFloats);
    if (auto let = lets_.find(Peek()); word && let != lets_.end()) {
      ++at_;
      if (let->second.kind != RuleAttribute::kWord) Expected("a word");
      return let->second;
    }
    if (word) {
      const bool flag = spec != nullptr && spec->kind == AttributeKind::kBool;
      if (flag && Peek() != "true" && Peek() != "false") Expected("'true' or 'false'");
      value.word = Name("a word");
      return value;
    }
    value.kind = list ? RuleAttribute::kList : RuleAttribute::kNumber;
    if (!list) {
      value.terms.push_back(Term(binds));
      return value;
    }
    Want("[");
    while (ok() && Peek() != "]") {
      value.terms.push_back(Term(binds));
      if (!Take(",")) break;
    }
    Want("]");
    return value;
  }

  bool IsVariable(const std::string& name) const {
    return variables_.count(name) > 0 || lets_.count(name) > 0;
  }

  // `binds`: a variable that stands alone binds the matched number.
  RuleTerm Term(bool binds) {
    RuleTerm term;
    bool divides = false;
    while (ok()) {
      if (IsNumber(Peek())) {
        term.factors.push_back({.number = Number(), .divides = divides});
      } else {
        const std::string name = Name("a number or a variable");
        if (auto let = lets_.find(name); let != lets_.end()) {
          if (let->second.kind != RuleAttribute::kNumber) {
            Fail(absl::StrCat("'", name, "' is a word, expected a number"));
            break;
          }
          for (RuleTerm::Factor factor : let->second.terms[0].factors) {
            factor.divides = factor.divides != divides;
            term.factors.push_back(std::move(factor));
          }
        } else {
          term.factors.push_back({.variable = name, .divides = divides});
        }
      }
      if (Peek() != "*" && Peek() != "/") break;
      divides = words_[at_++] == "/";
    }
    for (const RuleTerm::Factor& factor : term.factors) {
      if (factor.variable.empty()) continue;
      if (binds && !term.variable().empty()) {
        variables_.insert(factor.variable);
      } else {
        used_.emplace(factor.variable, line_);
      }
    }
    return term;
  }

  RuleShape Shape() {
    RuleShape shape;
    shape.given = true;
    if (IsName(Peek())) {
      shape.dtype = DTypeFromName(Peek());
      if (shape.dtype == DType::kInvalid) Expected("an element type or '['");
      ++at_;
    }
    Want("[");
    while (ok() && Peek() != "]") {
      if (shape.dims.empty() && !shape.any_leading && (Peek() == "..." || Peek(1) == "...")) {
        shape.any_leading = true;
        if (Peek() != "...") shape.leading = Name("a name");
        Want("...");
      } else if (IsNumber(Peek())) {
        shape.dims.push_back({.size = Integer()});
        if (ok() && shape.dims.back().size < 0) Fail("expected a size of at least 0");
      } else {
        const std::string name = Name("a size, a name, '_' or ']'");
        if (name != "_") variables_.insert(name);
        shape.dims.push_back({.variable = name == "_" ? "" : name});
      }
      if (!Take(",")) break;
    }
    Want("]");
    return shape;
  }

  void ParseExample() {
    const std::string name = Name("a value, a variable or value.attribute");
    Want(":");
    if (!ok()) return;
    if (IsName(Peek())) {
      const std::string type = words_[at_];
      const DType dtype = DTypeFromName(type);
      if (dtype == DType::kInvalid) return Expected("an element type, a number or a list");
      RuleShape shape = Shape();
      TensorType known{dtype, {}};
      double elements = 1;
      for (const RuleShape::Dim& dim : shape.dims) {
        if (dim.size < 0 || shape.any_leading) return Fail("expected the sizes of an example");
        known.dims.push_back(dim.size);
        elements *= static_cast<double>(std::max<int64_t>(dim.size, 1));
      }
      if (elements > kMaxExample) {
        return Fail(absl::StrCat("expected at most ", kMaxExample, " elements in an example"));
      }
      rule_.example.types[name] = std::move(known);
    } else if (Take("[")) {
      std::vector<int64_t> list;
      while (ok() && Peek() != "]") {
        list.push_back(Integer());
        if (!Take(",")) break;
      }
      Want("]");
      rule_.example.attributes[name] = list;
    } else {
      rule_.example.numbers[name] = Number();
    }
  }

  void CheckNode(const OpDef& def, const RuleNode& node) {
    const size_t most = def.inputs.size();
    const bool variadic = most > 0 && def.inputs.back().variadic;
    if (node.inputs.size() > most && !variadic) {
      return Fail(absl::StrCat("operator '", node.op, "' takes at most ", most, " inputs, found ",
                               node.inputs.size()));
    }
    for (size_t i = 0; i < most; ++i) {
      const bool given = i < node.inputs.size() && node.inputs[i] != kNoValue;
      if (!given && !def.inputs[i].optional) {
        return Fail(
            absl::StrCat("operator '", node.op, "' needs input '", def.inputs[i].name, "'"));
      }
    }
    if (def.num_outputs >= 0 && static_cast<int>(node.outputs.size()) != def.num_outputs) {
      return Fail(absl::StrCat("operator '", node.op, "' has ", def.num_outputs,
                               " outputs, found names for ", node.outputs.size()));
    }
    for (int v : node.inputs) {
      if (v == kNoValue) continue;
      const std::string& name = rule_.values[v].name;
      if (replacement_ && matched_.count(name) > 0 && made_.count(name) == 0) {
        return Fail(absl::StrCat("reads '", name, "', which goes with the pattern"));
      }
      const bool own = std::count(node.outputs.begin(), node.outputs.end(), v) > 0;
      if (own) return Fail(absl::StrCat("reads '", name, "', its own result"));
    }
  }

  void Conclude() {
    for (const auto& [name, line] : used_) {
      if (variables_.count(name) > 0) continue;
      line_ = line;
      return Fail(absl::StrCat("'", name, "' is no number that the pattern knows"));
    }
    if (rule_.pattern.empty()) return Fail("expected a node above '=>'");
    if (rule_.replacement.empty()) return Fail("expected a node below '=>'");
    for (size_t v = 0; v < rule_.values.size(); ++v) {
      const std::string& name = rule_.values[v].name;
      const bool computed = matched_.count(name) > 0;
      if (computed && made_.count(name) > 0) rule_.outputs.push_back(static_cast<int>(v));
      if (computed || made_.count(name) > 0) continue;
      if (read_[false].count(name) == 0) {
        return Fail(absl::StrCat("'", name, "' is in no node of the pattern"));
      }
      if (!rule_.values[v].is_number) rule_.inputs.push_back(static_cast<int>(v));
    }
    if (absl::Status status = FinishRule(registry_, &rule_); !status.ok()) Fail(status.message());
  }

  const OpRegistry& registry_;
  const RuleText& text_;
  RewriteRule rule_;
  absl::Status status_;
  int line_ = 0;
  bool replacement_ = false;
  std::vector<std::string> words_;
  size_t at_ = 0;
  std::map<std::string, int> index_;      // of values
  std::set<std::string> matched_, made_;  // values that the sides compute
  std::set<std::string> read_[2];         // by the pattern, by the replacement
  std::set<std::string> variables_;       // numbers that the pattern knows
  std::map<std::string, int> used_;       // numbers that are read, with the line
  std::map<std::string, RuleAttribute> lets_;
};

}  // namespace

absl::StatusOr<std::vector<RewriteRule>> ParseRules(const OpRegistry& registry,
                                                    const std::string& text) {
  absl::StatusOr<std::vector<RuleText>> texts = SplitRules(text);
  if (!texts.ok()) return texts.status();
  std::vector<RewriteRule> rules;
  std::set<std::string> names;
  for (const RuleText& one : *texts) {
    absl::StatusOr<RewriteRule> rule = Parser(registry, one).Run();
    if (!rule.ok()) return rule.status();
    if (!names.insert(rule->name).second) {
      return RuleError(one.number, one.name, "there is a rule of this name already");
    }
    rules.push_back(*std::move(rule));
  }
  return rules;
}

}  // namespace espalier
