// Deterministic automata of regular languages over code points. They provide what rules of a
// context-free grammar cannot: intersection and difference.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

inline constexpr int kMaxDfaStates = 8'000;

// Estimated expressions per state in the rules of AddRules.
inline constexpr int64_t kPartsOfState = 8;

// What is left for building automata, in steps of a few nanoseconds.
using DfaBudget = int64_t;

// A value type. From every state an accepting state can be reached, except from the start state of
// the empty language.
class Dfa {
 public:
  // Subset construction. Returns InvalidArgument if that takes more than kMaxDfaStates states or
  // the rest of the budget, or if the expression calls a rule.
  static absl::StatusOr<Dfa> From(const Expression& expression, DfaBudget* budget);
  // Accepts every JSON number without exponent and with at most `places` decimal places that is a
  // multiple of `divisor` / 10^places. May accept texts that are no numbers: intersect it with
  // numbers. Errors as for From.
  static absl::StatusOr<Dfa> Multiples(int64_t divisor, int places, DfaBudget* budget);

  // Intersection and difference. Errors as for From.
  absl::StatusOr<Dfa> And(const Dfa& other, DfaBudget* budget) const;
  absl::StatusOr<Dfa> Without(const Dfa& other, DfaBudget* budget) const;

  bool empty() const { return states_.size() == 1 && !states_[0].accepting; }
  bool Accepts(absl::string_view utf8) const;
  int size() const { return static_cast<int>(states_.size()); }

  // Adds a rule "<name>/<state>" for each state and returns a call of the first. `form` translates
  // character classes.
  Expression AddRules(const std::string& name,
                      const std::function<Expression(const CodePoints&)>& form,
                      Grammar* grammar) const;

 private:
  struct Edge {
    uint32_t low, high;  // code points, inclusive
    int32_t to;
  };
  struct State {
    bool accepting = false;
    std::vector<Edge> edges;  // ascending, disjoint
  };

  absl::StatusOr<Dfa> Product(const Dfa& other, bool negate_other, DfaBudget* budget) const;
  int32_t Next(int32_t state, uint32_t point) const;  // -1: none
  void Trim();
  void Minimize();

  std::vector<State> states_ = {State()};  // the first is the start state
};

}  // namespace espalier
