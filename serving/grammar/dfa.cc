#include "serving/grammar/dfa.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/thompson.h"

namespace espalier {
namespace {

constexpr int64_t kMaxNfaNodes = 50'000, kMaxNfaSteps = 200'000;
// Budget of an automaton, of a state of a product, and of a state that is minimized.
constexpr DfaBudget kLeastCost = 50, kStateCost = 10, kMinimizeCost = 100;

absl::Status TooLarge() {
  return absl::InvalidArgumentError(
      absl::StrCat("together these need more than ", kMaxDfaStates,
                   " states, or too long to be found; lower the lengths and counts, or make the "
                   "patterns simpler"));
}

struct NfaNode {
  CodePoints points;  // label of the edge to `to`; sorted, disjoint
  int32_t to = -1;
  std::vector<int32_t> epsilons;
};

class Nfa : public ThompsonBuilder {
 public:
  Nfa() : ThompsonBuilder(kMaxNfaNodes, kMaxNfaSteps, TooLarge()) {}

  const NfaNode& node(int32_t number) const { return nodes_[number]; }
  // Returns the nodes and epsilons that Closed has visited since the last call.
  int64_t TakeWork() { return std::exchange(work_, 0); }

  void AddEpsilon(int32_t from, int32_t to) override { nodes_[from].epsilons.push_back(to); }

  // The epsilon closure.
  std::vector<int32_t> Closed(std::vector<int32_t> set) {
    seen_.resize(nodes_.size(), 0);
    ++round_;
    for (const int32_t node : set) seen_[node] = round_;
    for (size_t i = 0; i < set.size(); ++i) {
      work_ += 1 + static_cast<int64_t>(nodes_[set[i]].epsilons.size());
      for (const int32_t to : nodes_[set[i]].epsilons) {
        if (seen_[to] != round_) set.push_back(to);
        seen_[to] = round_;
      }
    }
    // Nodes with only epsilons do not distinguish sets.
    set.erase(std::remove_if(
                  set.begin(), set.end(),
                  [this](int32_t n) { return nodes_[n].to < 0 && !nodes_[n].epsilons.empty(); }),
              set.end());
    std::sort(set.begin(), set.end());
    return set;
  }

 private:
  void AppendNode() override { nodes_.emplace_back(); }

  int32_t AddLiteral(absl::string_view bytes, int32_t from) override {
    for (size_t at = 0; at < bytes.size();) {
      const uint32_t point = TakeUtf8(bytes, &at);
      from = AddClass({{point, point}}, from);
    }
    return from;
  }

  int32_t AddClass(const CodePoints& points, int32_t from) override {
    const int32_t on = NewNode(), to = NewNode();
    AddEpsilon(from, on);
    nodes_[on].points = points;
    nodes_[on].to = to;
    return to;
  }

  int32_t AddCall(const std::string&, int32_t from) override {
    Fail(absl::InvalidArgumentError("it is not regular"));
    return from;
  }

  std::vector<NfaNode> nodes_;
  std::vector<int64_t> seen_;  // the last round of Closed that visited each node
  int64_t round_ = 0, work_ = 0;
};

}  // namespace

absl::StatusOr<Dfa> Dfa::From(const Expression& expression, DfaBudget* budget) {
  Nfa nfa;
  const int32_t begin = nfa.NewNode();
  const int32_t behind = nfa.Add(expression, begin);
  // Has no epsilons, so Closed keeps it.
  const int32_t end = nfa.NewNode();
  nfa.AddEpsilon(behind, end);
  if (!nfa.status().ok()) return nfa.status();
  *budget -= kLeastCost + nfa.num_nodes() + nfa.steps();
  Dfa out;
  std::map<std::vector<int32_t>, int32_t> numbers;
  std::vector<std::vector<int32_t>> sets = {nfa.Closed({begin})};
  numbers[sets[0]] = 0;
  for (size_t s = 0; s < sets.size(); ++s) {
    const std::vector<int32_t> set = sets[s];
    out.states_[s].accepting = std::binary_search(set.begin(), set.end(), end);
    // Boundaries of the members' ranges: first code points, and those after the last ones.
    std::vector<uint32_t> cuts;
    for (const int32_t node : set) {
      for (const auto& [low, high] : nfa.node(node).points) {
        cuts.push_back(low);
        cuts.push_back(high + 1);
      }
    }
    *budget -= static_cast<DfaBudget>(cuts.size());
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    // Closures have been charged as they were built.
    *budget -= static_cast<DfaBudget>(cuts.size() * set.size()) + nfa.TakeWork();
    if (*budget < 0) return TooLarge();
    // For each member, the first range that does not end before the cut. Ranges and cuts ascend.
    std::vector<size_t> ranges(set.size(), 0);
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      std::vector<int32_t> targets;
      for (size_t member = 0; member < set.size(); ++member) {
        const NfaNode& node = nfa.node(set[member]);
        size_t& range = ranges[member];
        while (range < node.points.size() && node.points[range].second < cuts[c]) ++range;
        if (range < node.points.size() && node.points[range].first <= cuts[c]) {
          targets.push_back(node.to);
        }
      }
      if (targets.empty()) continue;
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      std::vector<int32_t> next = nfa.Closed(std::move(targets));
      const auto [it, inserted] =
          numbers.try_emplace(std::move(next), static_cast<int32_t>(sets.size()));
      if (inserted) {
        if (sets.size() >= kMaxDfaStates) return TooLarge();
        sets.push_back(it->first);
        out.states_.emplace_back();
      }
      out.states_[s].edges.push_back({cuts[c], cuts[c + 1] - 1, it->second});
    }
  }
  out.Trim();
  return out;
}

absl::StatusOr<Dfa> Dfa::Multiples(int64_t divisor, int places, DfaBudget* budget) {
  // States: the start, then one for each phase and remainder. Phase 0 precedes the point; phase p
  // follows p decimal places.
  const int64_t phases = places + 1;
  if (divisor < 1 || places < 0 || phases * divisor + 1 > kMaxDfaStates) return TooLarge();
  *budget -= kLeastCost + (phases + 1) * divisor * kMinimizeCost;
  if (*budget < 0) return TooLarge();
  Dfa out;
  const auto state = [&](int64_t phase, int64_t remainder) {
    return static_cast<int32_t>(1 + phase * divisor + remainder);
  };
  out.states_.resize(static_cast<size_t>(1 + phases * divisor));
  const auto add_digits = [&](int64_t remainder, int64_t phase, State* from) {
    for (uint32_t digit = 0; digit < 10; ++digit) {
      const int64_t next = (remainder * 10 + digit) % divisor;
      from->edges.push_back({'0' + digit, '0' + digit, state(phase, next)});
    }
  };
  out.states_[0].edges.push_back({'-', '-', state(0, 0)});
  add_digits(0, 0, &out.states_[0]);
  for (int64_t phase = 0; phase < phases; ++phase) {
    for (int64_t remainder = 0; remainder < divisor; ++remainder) {
      State& s = out.states_[state(phase, remainder)];
      int64_t whole = remainder;  // with the missing decimal places as zeros
      for (int64_t i = phase; i < places; ++i) whole = whole * 10 % divisor;
      s.accepting = whole == 0;
      // The point must be followed by a digit: it leads to states of its own, below.
      if (phase > 0 && phase < places) add_digits(remainder, phase + 1, &s);
      if (phase == 0) add_digits(remainder, 0, &s);
    }
  }
  if (places > 0) {
    // States behind the point, one for each remainder; they do not accept.
    const size_t first = out.states_.size();
    if (first + static_cast<size_t>(divisor) > kMaxDfaStates) return TooLarge();
    for (int64_t remainder = 0; remainder < divisor; ++remainder) {
      out.states_.emplace_back();
      add_digits(remainder, 1, &out.states_.back());
      State& before = out.states_[state(0, remainder)];
      before.edges.insert(
          before.edges.begin(),
          {'.', '.', static_cast<int32_t>(first) + static_cast<int32_t>(remainder)});
    }
  }
  out.Trim();
  out.Minimize();
  return out;
}

int32_t Dfa::Next(int32_t state, uint32_t point) const {
  const std::vector<Edge>& edges = states_[state].edges;
  const auto it = std::lower_bound(edges.begin(), edges.end(), point,
                                   [](const Edge& edge, uint32_t p) { return edge.high < p; });
  return it != edges.end() && it->low <= point ? it->to : -1;
}

bool Dfa::Accepts(absl::string_view utf8) const {
  int32_t state = 0;
  for (size_t at = 0; at < utf8.size() && state >= 0;) state = Next(state, TakeUtf8(utf8, &at));
  return state >= 0 && states_[state].accepting;
}

absl::StatusOr<Dfa> Dfa::And(const Dfa& other, DfaBudget* budget) const {
  return Product(other, false, budget);
}

absl::StatusOr<Dfa> Dfa::Without(const Dfa& other, DfaBudget* budget) const {
  return Product(other, true, budget);
}

absl::StatusOr<Dfa> Dfa::Product(const Dfa& other, bool negate_other, DfaBudget* budget) const {
  Dfa out;
  *budget -= kLeastCost;
  std::map<std::pair<int32_t, int32_t>, int32_t> numbers = {{{0, 0}, 0}};
  // second -1: `other` has no transition
  std::vector<std::pair<int32_t, int32_t>> pairs = {{0, 0}};
  for (size_t s = 0; s < pairs.size(); ++s) {
    const auto [a, b] = pairs[s];
    const bool in_other = b >= 0 && other.states_[b].accepting;
    out.states_[s].accepting = states_[a].accepting && in_other != negate_other;
    const auto add = [&](uint32_t low, uint32_t high, int32_t to_a, int32_t to_b) {
      const auto [it, inserted] =
          numbers.try_emplace({to_a, to_b}, static_cast<int32_t>(pairs.size()));
      if (inserted) {
        pairs.emplace_back(to_a, to_b);
        out.states_.emplace_back();
      }
      out.states_[s].edges.push_back({low, high, it->second});
    };
    static const std::vector<Edge>& kNone = *new std::vector<Edge>();
    const std::vector<Edge>& theirs = b >= 0 ? other.states_[b].edges : kNone;
    size_t j = 0;
    for (const Edge& edge : states_[a].edges) {
      uint32_t low = edge.low;
      while (j < theirs.size() && theirs[j].high < low) ++j;
      // Pair each part of the edge with the transitions of `other`.
      for (size_t k = j; low <= edge.high; ++k) {
        const bool more = k < theirs.size() && theirs[k].low <= edge.high;
        const uint32_t gap_end = more ? theirs[k].low : edge.high + 1;
        if (negate_other && low < gap_end) add(low, gap_end - 1, edge.to, -1);
        if (!more) break;
        const uint32_t from = std::max(low, theirs[k].low);
        const uint32_t to = std::min(edge.high, theirs[k].high);
        add(from, to, edge.to, theirs[k].to);
        low = to + 1;
      }
    }
    *budget -= kStateCost + static_cast<DfaBudget>(theirs.size() + out.states_[s].edges.size());
    if (pairs.size() > kMaxDfaStates || *budget < 0) return TooLarge();
  }
  out.Trim();
  return out;
}

// Keeps the states from which an accepting state can be reached. All states are reachable here.
void Dfa::Trim() {
  std::vector<std::vector<int32_t>> before(states_.size());
  std::vector<bool> alive(states_.size(), false);
  std::vector<int32_t> work;
  for (size_t s = 0; s < states_.size(); ++s) {
    for (const Edge& edge : states_[s].edges) before[edge.to].push_back(static_cast<int32_t>(s));
    if (!states_[s].accepting) continue;
    alive[s] = true;
    work.push_back(static_cast<int32_t>(s));
  }
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (const int32_t from : before[state]) {
      if (!alive[from]) work.push_back(from);
      alive[from] = true;
    }
  }
  alive[0] = true;
  std::vector<int32_t> number(states_.size(), -1);
  std::vector<State> kept;
  for (size_t s = 0; s < states_.size(); ++s) {
    if (!alive[s]) continue;
    number[s] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(states_[s]));
  }
  for (State& state : kept) {
    std::vector<Edge> edges;
    for (const Edge& edge : state.edges) {
      if (number[edge.to] < 0) continue;
      const int32_t to = number[edge.to];
      if (!edges.empty() && edges.back().to == to && edges.back().high + 1 == edge.low) {
        edges.back().high = edge.high;
      } else {
        edges.push_back({edge.low, edge.high, to});
      }
    }
    state.edges = std::move(edges);
  }
  states_ = std::move(kept);
}

// Moore's algorithm: refine the partition by acceptance and transitions until it is stable.
void Dfa::Minimize() {
  std::vector<int32_t> part(states_.size());
  for (size_t s = 0; s < states_.size(); ++s) part[s] = states_[s].accepting ? 1 : 0;
  // The start state keeps number 0.
  if (part[0] == 1) {
    for (int32_t& p : part) p = 1 - p;
  }
  std::vector<State> merged;
  for (size_t parts = 0;;) {
    std::map<std::pair<int32_t, std::vector<uint32_t>>, int32_t> numbers;
    std::vector<int32_t> next(states_.size());
    merged.clear();
    for (size_t s = 0; s < states_.size(); ++s) {
      std::vector<Edge> edges;
      for (const Edge& edge : states_[s].edges) {
        const int32_t to = part[edge.to];
        if (!edges.empty() && edges.back().to == to && edges.back().high + 1 == edge.low) {
          edges.back().high = edge.high;
        } else {
          edges.push_back({edge.low, edge.high, to});
        }
      }
      std::vector<uint32_t> signature;
      for (const Edge& edge : edges) {
        signature.insert(signature.end(), {edge.low, edge.high, static_cast<uint32_t>(edge.to)});
      }
      const auto [it, inserted] = numbers.try_emplace({part[s], std::move(signature)},
                                                      static_cast<int32_t>(numbers.size()));
      next[s] = it->second;
      if (inserted) merged.push_back({states_[s].accepting, std::move(edges)});
    }
    part = std::move(next);
    // Edges of `merged` have the numbers of the last partition, final only if nothing was split.
    if (numbers.size() == parts) break;
    parts = numbers.size();
  }
  states_ = std::move(merged);
}

Expression Dfa::AddRules(const std::string& name,
                         const std::function<Expression(const CodePoints&)>& form,
                         Grammar* grammar) const {
  const auto rule = [&](int32_t state) { return absl::StrCat(name, "/", state); };
  // A class that translates to several alternatives becomes a rule, which the states share.
  std::map<CodePoints, Expression> forms;
  const auto form_of = [&](const CodePoints& points) {
    const auto [it, inserted] = forms.try_emplace(points);
    if (!inserted) return it->second;
    it->second = form(points);
    if (it->second.kind == Expression::kChoice) {
      const std::string shared = absl::StrCat(name, "/class ", forms.size());
      grammar->rules[shared] = std::move(it->second);
      it->second = RuleCall(shared);
    }
    return it->second;
  };
  for (size_t s = 0; s < states_.size(); ++s) {
    std::map<int32_t, CodePoints> by_target;
    for (const Edge& edge : states_[s].edges) by_target[edge.to].emplace_back(edge.low, edge.high);
    std::vector<Expression> ways;
    if (states_[s].accepting) ways.push_back(Literal(""));
    for (const auto& [to, points] : by_target) {
      ways.push_back(Sequence({form_of(points), RuleCall(rule(to))}));
    }
    // The empty language.
    if (ways.empty()) ways.push_back(OneOf({}));
    grammar->rules[rule(static_cast<int32_t>(s))] = Choice(std::move(ways));
  }
  return RuleCall(rule(0));
}

}  // namespace espalier
