// Rewrite rules (graph substitutions): a pattern graph and its replacement. Rules are data, written
// as text, so that fusion (fuse.h), the planner's search and users share them. They correspond to
// the substitutions of Unity (Unger et al., OSDI 2022).
//
//   rule linear_bias
//     doc "a bias that is added after a linear layer"
//     t = linear(x, w) {activation: none}
//     y = add(t, b)
//     shape b: [O]
//     =>
//     y = linear(x, w, b) {*: t}
//     example x: f32[3, 8], w: f32[5, 8], b: f32[5]
//
// The pattern stands above "=>", the replacement below. Inputs are the names that no line of the
// pattern computes. Outputs are the names that both sides compute; they keep their types. The last
// line of the pattern must compute an output. Every other line must lead to it, or read, at the
// same operand position, a value that a later line reads (siblings).
//
//   y, s = op(a, b?, _) {...}  a node; "b?" may be absent; "_" and trailing inputs must be absent
//   {axis: 1, *}               attributes. In a pattern, an unnamed one must have its default, if
//                              there is one, or with "*" any value; a variable binds the number;
//                              "last" is the last dimension of input 0. In a replacement "*: t"
//                              copies the attributes of t's node
//   shape q: f32[N..., H, _]   dimensions of a value: numbers, names, "_" for any; first, any
//                              number of leading ones as "..." or NAME... The element type is
//                              optional
//   mask m                     m is a causal mask: a constant that hides exactly what lies right of
//                              the diagonal of its last two dimensions; bool (true = visible), or
//                              additive (0, or -1e9 and less)
//   number c, number c = 0.5   c is a constant of one element
//   let s = 1 / c              s abbreviates products and quotients of numbers, or a word
//   require c < -1e9           or >
//   either mask none           one rule per alternative, up to "end"; blocks of the same name, on
//   or added                   both sides, take the same alternative
//   choice "why"               does not always pay off: for a search, not for Fuse
//   example x: f32[3, 8], c: 2, q.shape: [2, 4]
//                              test data: types of the inputs, numbers, attributes that the
//                              pattern leaves open
//
// Numbers match to a relative 1e-5, integers exactly. Add and multiply are commutative.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// A product or quotient of numbers and variables.
struct RuleTerm {
  struct Factor {
    std::string variable;  // empty: `number`
    double number = 1;
    bool divides = false;
  };
  std::vector<Factor> factors;

  // literal(): the number, if the term is one. variable(): the name, if the term is one; else
  // empty.
  std::optional<double> literal() const;
  std::string variable() const;
  // Returns nullopt if `numbers` lacks a variable.
  std::optional<double> Evaluate(const std::map<std::string, double>& numbers) const;
};

// An attribute's required value in a pattern, or its new value in a replacement.
struct RuleAttribute {
  enum Kind { kWord, kNumber, kList };
  std::string name;
  Kind kind = kWord;
  std::string word;             // kWord: a string, "true", "false"
  std::vector<RuleTerm> terms;  // kNumber: one
};

struct RuleShape {
  bool given = false;
  DType dtype = DType::kInvalid;  // kInvalid: any
  bool any_leading = false;
  std::string leading;  // the name of the leading dimensions; may be empty
  struct Dim {
    int64_t size = -1;  // -1: any, or `variable`
    std::string variable;
  };
  std::vector<Dim> dims;
};

struct RuleValue {
  std::string name;
  bool optional = false;
  bool is_number = false;        // a constant of one element, bound to the variable `name`
  std::optional<double> number;  // its value, if fixed
  bool causal = false;           // "mask"
  // Set by the parser on inputs that have a gradient in the pattern but not in the replacement.
  // They match only values that depend on no trainable parameter.
  bool loses_gradient = false;
  RuleShape shape;
};

// Values by index in RewriteRule::values; kNoValue if absent.
struct RuleNode {
  std::string op;
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<RuleAttribute> attributes;
  bool any_others = false;  // pattern: "*"
  int copies = -1;          // replacement: the node of the pattern whose attributes it takes over
};

struct RewriteRule {
  std::string name;  // of an alternative: "rule(label, label)"
  std::string doc;
  std::string choice;  // why a search should decide; empty if the rule always pays off
  std::vector<RuleValue> values;
  std::vector<RuleNode> pattern;      // operands first; the last node is where matching starts
  std::vector<RuleNode> replacement;  // operands first
  std::vector<int> inputs;            // without numbers
  std::vector<int> outputs;
  struct Requirement {
    RuleTerm term;
    bool less = false;
    double bound = 0;
  };
  std::vector<Requirement> requirements;

  struct Example {
    std::map<std::string, TensorType> types;
    std::map<std::string, double> numbers;
    std::map<std::string, AttributeValue> attributes;  // by "value.attribute"
  };
  Example example;
};

// Returns the rules of `text`, in order. Returns InvalidArgument that names the line, the rule and
// what was expected. REQUIRES: operators and attributes are in the registry.
absl::StatusOr<std::vector<RewriteRule>> ParseRules(const OpRegistry& registry,
                                                    const std::string& text);

// Returns the pattern as a bound graph. Its floating-point inputs are trainable parameters (except
// masks, numbers and inputs that lose their gradient), and the rule's outputs are named outputs.
// `with_optional`: whether optional inputs are present. Returns InvalidArgument if the example is
// incomplete or an operator (named) refuses it.
absl::StatusOr<Graph> ExampleGraph(const OpRegistry& registry, const RewriteRule& rule,
                                   bool with_optional = true);

}  // namespace espalier
