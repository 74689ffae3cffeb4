// Regular languages over code points as deterministic automata. They do what the rules of a
// context-free grammar cannot: texts that two expressions accept both, or that one does not.
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

// Expressions of the rules of one state, about.
inline constexpr int64_t kPartsOfState = 8;

// What making automata may still cost, in steps of a few nanoseconds.
using DfaBudget = int64_t;

// A value. Every state lies on the way to an accepting one, but for the start of the empty
// language.
class Dfa {
 public:
  // By subset construction. InvalidArgument if it needs more than kMaxDfaStates or what is left of
  // the budget, or calls a rule.
  static absl::StatusOr<Dfa> From(const Expression& expression, DfaBudget* budget);
  // What JSON numbers without exponent, with at most `places` digits behind the point, must be
  // besides to be a multiple of `divisor` / 10^places. InvalidArgument as From.
  static absl::StatusOr<Dfa> Multiples(int64_t divisor, int places, DfaBudget* budget);

  // Texts of both, and of this one but not of `other`. InvalidArgument as From.
  absl::StatusOr<Dfa> And(const Dfa& other, DfaBudget* budget) const;
  absl::StatusOr<Dfa> Without(const Dfa& other, DfaBudget* budget) const;

  bool empty() const { return states_.size() == 1 && !states_[0].accepting; }
  bool Accepts(absl::string_view utf8) const;
  int size() const { return static_cast<int>(states_.size()); }

  // Adds a rule for each state, "<name>/<state>", whose classes of characters are written as `form`
  // has them; returns the call of the first.
  Expression AddRules(const std::string& name,
                      const std::function<Expression(const CodePoints&)>& form,
                      Grammar* grammar) const;

 private:
  struct Edge {
    uint32_t low, high;  // code points, both ends included
    int32_t to;
  };
  struct State {
    bool accepting = false;
    std::vector<Edge> edges;  // from low to high, without overlap
  };

  absl::StatusOr<Dfa> Product(const Dfa& other, bool negate_other, DfaBudget* budget) const;
  int32_t Next(int32_t state, uint32_t point) const;  // -1: none
  void Trim();
  void Minimize();

  std::vector<State> states_ = {State()};  // the first is the start
};

}  // namespace espalier
