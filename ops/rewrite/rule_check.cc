#include "ops/rewrite/rule_check.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr int kMaxCommuting = 8;
constexpr int kMaxSiblings = 3;

// Every value is computed before it is read.
absl::Status CheckOrder(const RewriteRule& rule, const std::vector<RuleNode>& nodes,
                        const char* side) {
  std::set<int> later;
  for (const RuleNode& node : nodes) later.insert(node.outputs.begin(), node.outputs.end());
  for (const RuleNode& node : nodes) {
    for (int v : node.inputs) {
      if (v == kNoValue || later.count(v) == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the ", side, " reads '", rule.values[v].name, "' before it is computed"));
    }
    for (int v : node.outputs) later.erase(v);
  }
  return absl::OkStatus();
}

// Matching tries both operand orders of each.
absl::Status CheckCommuting(const RewriteRule& rule) {
  int commuting = 0;
  for (const RuleNode& node : rule.pattern) {
    commuting += (node.op == "add" || node.op == "multiply") && node.inputs[0] != node.inputs[1];
  }
  if (commuting <= kMaxCommuting) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected at most ", kMaxCommuting,
                                                 " nodes add or multiply, found ", commuting));
}

// All nodes are reachable from the last node of the pattern, through operands or shared operands.
absl::Status CheckReached(const RewriteRule& rule) {
  const std::vector<int>& last = rule.pattern.back().outputs;
  if (std::none_of(rule.outputs.begin(), rule.outputs.end(),
                   [&](int v) { return std::count(last.begin(), last.end(), v) > 0; })) {
    return absl::InvalidArgumentError(
        "the replacement must compute a result of the last node of the pattern");
  }
  std::set<int> wanted(last.begin(), last.end()), read;
  int siblings = 0;
  for (size_t n = rule.pattern.size(); n-- > 0;) {
    const RuleNode& node = rule.pattern[n];
    const auto in = [](const std::set<int>& set) {
      return [&set](int v) { return v != kNoValue && set.count(v) > 0; };
    };
    if (std::none_of(node.outputs.begin(), node.outputs.end(), in(wanted))) {
      const std::set<int> results(rule.outputs.begin(), rule.outputs.end());
      if (std::none_of(node.inputs.begin(), node.inputs.end(), in(read)) ||
          std::none_of(node.outputs.begin(), node.outputs.end(), in(results))) {
        return absl::InvalidArgumentError(
            absl::StrCat("the last node of the pattern does not depend on '", node.op,
                         "', which may only be if a later node reads the same and the "
                         "replacement computes its result"));
      }
      if (++siblings > kMaxSiblings) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected at most ", kMaxSiblings,
                         " nodes of the pattern on which the last one does not depend"));
      }
    }
    wanted.insert(node.inputs.begin(), node.inputs.end());
    read.insert(node.inputs.begin(), node.inputs.end());
  }
  return absl::OkStatus();
}

// The values to which an output gives a gradient.
std::set<int> Differentiable(const OpRegistry& registry, const RewriteRule& rule,
                             const std::vector<RuleNode>& nodes) {
  std::set<int> reached(rule.outputs.begin(), rule.outputs.end());
  for (size_t n = nodes.size(); n-- > 0;) {
    const OpDef& def = *registry.Find(nodes[n].op);
    if (!def.gradient.has_value() ||
        std::none_of(nodes[n].outputs.begin(), nodes[n].outputs.end(),
                     [&](int v) { return v != kNoValue && reached.count(v) > 0; }))
      continue;
    for (int index : def.gradient->differentiable) {
      const size_t first = index, size = nodes[n].inputs.size();
      const bool variadic = first < def.inputs.size() && def.inputs[first].variadic;
      for (size_t i = first; i < (variadic ? size : std::min(size, first + 1)); ++i) {
        reached.insert(nodes[n].inputs[i]);
      }
    }
  }
  return reached;
}

}  // namespace

std::vector<int> Siblings(const RewriteRule& rule) {
  std::vector<int> siblings;
  std::set<int> wanted(rule.pattern.back().outputs.begin(), rule.pattern.back().outputs.end());
  for (size_t n = rule.pattern.size(); n-- > 0;) {
    const RuleNode& node = rule.pattern[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(),
                     [&](int v) { return v != kNoValue && wanted.count(v) > 0; })) {
      siblings.push_back(static_cast<int>(n));
    }
    wanted.insert(node.inputs.begin(), node.inputs.end());
  }
  return siblings;
}

absl::Status FinishRule(const OpRegistry& registry, RewriteRule* rule) {
  for (const absl::Status& status : {CheckOrder(*rule, rule->pattern, "pattern"),
                                     CheckOrder(*rule, rule->replacement, "replacement"),
                                     CheckReached(*rule), CheckCommuting(*rule)}) {
    if (!status.ok()) return status;
  }
  const std::set<int> before = Differentiable(registry, *rule, rule->pattern),
                      after = Differentiable(registry, *rule, rule->replacement);
  for (int v : rule->inputs) {
    rule->values[v].loses_gradient = before.count(v) > 0 && after.count(v) == 0;
  }
  return absl::OkStatus();
}

}  // namespace espalier
