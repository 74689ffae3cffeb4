// Rewrite rules: a small graph to look for and the one that takes its place. They are data, written
// as text, so that fusion (fuse.h), the planner's search and users share them. The idea is that of
// the substitutions of Unity (Unger et al., OSDI 2022).
//
//   rule linear_bias
//     doc "a bias that is added behind a linear layer"
//     t = linear(x, w) {activation: none}
//     y = add(t, b)
//     shape b: [O]
//     =>
//     y = linear(x, w, b) {*: t}
//     example x: f32[3, 8], w: f32[5, 8], b: f32[5]
//
// Above "=>" stands the pattern, below it the replacement. Names that no line of the pattern
// computes are the inputs; names that both sides compute are the outputs, which keep their types;
// all others go, or are new. The last line of the pattern computes an output, and all other lines
// lead to it or read, at the same place, what a line behind them reads (siblings).
//
//   y, s = op(a, b?, _) {...}  a node; "b?" may be absent, "_" and inputs that are not named are
//   {axis: 1, *}               attributes. In a pattern, those that are not named have their
//                              defaults where there is one, or any value with "*"; a name takes the
//                              number, "last" is the last dimension of input 0. In a replacement
//                              "*: t" copies what the node of t has
//   shape q: f32[N..., H, _]   dimensions of a value: numbers, names, "_" for any; in front
//                              any number of them as "..." or NAME... The element type may be
//                              left out
//   mask m                     m is a constant that hides what lies right of the diagonal of its
//                              last two dimensions and nothing else: bool (true = visible), or
//                              numbers to add (0, or -1e9 and less)
//   number c, number c = 0.5   c is a constant of one element
//   let s = 1 / c              s stands for products and quotients of numbers, or for a word
//   require c < -1e9           or >
//   either mask none           one rule for each of the alternatives, up to "end"; blocks of the
//   or added                   same name, on both sides, choose alike
//   choice "why"               not always a gain: for a search, not for Fuse
//   example x: f32[3, 8], c: 2, q.shape: [2, 4]
//                              types of the inputs, numbers, attributes that the pattern leaves
//                              open: what the rule is tested with
//
// Numbers agree to 1e-5 of their size, integers exactly. Operands of add and multiply may come in
// either order.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// A product and quotient of numbers and variables.
struct RuleTerm {
  struct Factor {
    std::string variable;  // empty: `number`
    double number = 1;
    bool divides = false;
  };
  std::vector<Factor> factors;

  // A number that is not named, or the name that stands alone; otherwise empty.
  std::optional<double> literal() const;
  std::string variable() const;
  // None if `numbers` lacks a variable.
  std::optional<double> Evaluate(const std::map<std::string, double>& numbers) const;
};

// What an attribute must be, or becomes.
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
  std::optional<double> number;  // which one
  bool causal = false;           // "mask"
  // Set by the parser on inputs that get no gradient from the replacement, but did from the
  // pattern: they match only what depends on no trainable parameter.
  bool loses_gradient = false;
  RuleShape shape;
};

// Values by their index in RewriteRule::values; kNoValue for one that is absent.
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
  std::string choice;  // why a search should decide; empty if the rule always gains
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

// The rules of `text`, in order. InvalidArgument names the line, the rule and what was expected;
// operators and attributes must be in the registry.
absl::StatusOr<std::vector<RewriteRule>> ParseRules(const OpRegistry& registry,
                                                    const std::string& text);

// The pattern as a bound graph in which every floating-point input is a trainable parameter (but
// for those that lose their gradient, masks and numbers) and every output of the rule a named
// output. `with_optional`: whether optional inputs are there. InvalidArgument: the example lacks
// something, or an operator refuses it (named).
absl::StatusOr<Graph> ExampleGraph(const OpRegistry& registry, const RewriteRule& rule,
                                   bool with_optional = true);

}  // namespace espalier
