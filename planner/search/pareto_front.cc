#include "planner/search/pareto_front.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

namespace espalier {
namespace {

constexpr int64_t kMostFrontSums = 200'000;  // per elimination

// A point with its origin: the variable's choice and the point taken of each factor's front.
struct Pair {
  double time = 0;
  double memory = 0;
  int choice = 0;
  std::vector<int> parts;
};
using Front = std::vector<Pair>;

// Sorts by time, removes beaten points, and keeps `most` at most.
void Thin(int most, Front* front) {
  std::stable_sort(front->begin(), front->end(), [](const Pair& a, const Pair& b) {
    return std::pair(a.time, a.memory) < std::pair(b.time, b.memory);
  });
  Front kept;
  for (Pair& pair : *front) {
    if (kept.empty() || pair.memory < kept.back().memory) kept.push_back(std::move(pair));
  }
  while (static_cast<int>(kept.size()) > most) {
    // Keep both ends.
    size_t least = 1;
    double smallest = 0;
    for (size_t i = 1; i + 1 < kept.size(); ++i) {
      const double step = std::log((kept[i - 1].memory + 1) / (kept[i + 1].memory + 1));
      if (i > 1 && step >= smallest) continue;
      smallest = step;
      least = i;
    }
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(least));
  }
  *front = std::move(kept);
}

struct ParetoFactor {
  std::vector<int> variables;
  std::vector<Front> fronts;  // by the choices of the variables, the first outermost
};

class Eliminator {
 public:
  Eliminator(std::vector<int> choices, std::vector<int> given, int most)
      : choices_(std::move(choices)),
        given_(std::move(given)),
        most_(most),
        factors_of_(choices_.size()) {}

  void Add(ParetoFactor factor) {
    for (int v : factor.variables) factors_of_[v].push_back(static_cast<int>(factors_.size()));
    factors_.push_back(std::move(factor));
  }

  std::vector<ParetoPoint> Run() {
    std::set<int> left;
    for (int v = 0; v < static_cast<int>(choices_.size()); ++v) left.insert(v);
    while (!left.empty()) {
      int next = *left.begin();
      for (int v : left) {
        if (Sums(v) < Sums(next)) next = v;
      }
      left.erase(next);
      Eliminate(next);
    }
    // Remaining factors have no variables.
    std::vector<int> rest;
    for (int f = 0; f < static_cast<int>(factors_.size()); ++f) {
      if (!taken(f)) rest.push_back(f);
    }
    Front all = {{}};
    for (int f : rest) all = Sum(all, factors_[f].fronts[0]);
    Thin(most_, &all);
    std::vector<ParetoPoint> points;
    for (const Pair& pair : all) {
      ParetoPoint point{pair.time, pair.memory, std::vector<int>(choices_.size(), 0)};
      std::vector<int> picked(factors_.size(), 0);
      for (size_t i = 0; i < rest.size(); ++i) picked[rest[i]] = pair.parts[i];
      Trace(picked, &point.choices);
      points.push_back(std::move(point));
    }
    return points;
  }

 private:
  struct Step {
    int variable = 0;
    std::vector<int> taken;  // factors
    int made = 0;            // factor
  };

  bool taken(int f) const { return taken_.count(f) > 0; }

  std::vector<int> Scope(int variable) const {
    std::set<int> scope;
    for (int f : factors_of_[variable]) {
      scope.insert(factors_[f].variables.begin(), factors_[f].variables.end());
    }
    scope.erase(variable);
    return {scope.begin(), scope.end()};
  }

  double Sums(int variable) const {
    double sums = choices_[variable];
    for (int v : Scope(variable)) sums *= choices_[v];
    return sums;
  }

  // Returns the choices of `scope` at index `at`, the first outermost.
  void Unfold(const std::vector<int>& scope, int64_t at, std::vector<int>* choices) const {
    for (size_t i = scope.size(); i-- > 0;) {
      (*choices)[scope[i]] = static_cast<int>(at % choices_[scope[i]]);
      at /= choices_[scope[i]];
    }
  }

  int64_t Fold(const ParetoFactor& factor, const std::vector<int>& choices) const {
    int64_t at = 0;
    for (int v : factor.variables) at = at * choices_[v] + choices[v];
    return at;
  }

  // The product of two fronts; `parts` records the index in the second.
  Front Sum(const Front& a, const Front& b) const {
    Front sum;
    for (const Pair& x : a) {
      for (size_t i = 0; i < b.size(); ++i) {
        Pair pair{x.time + b[i].time, x.memory + b[i].memory, x.choice, x.parts};
        pair.parts.push_back(static_cast<int>(i));
        sum.push_back(std::move(pair));
      }
    }
    Thin(most_, &sum);
    return sum;
  }

  void Eliminate(int variable) {
    const std::vector<int> scope = Scope(variable);
    const bool fixed = Sums(variable) > kMostFrontSums;
    Step step{variable, factors_of_[variable], 0};
    ParetoFactor made{scope, {}};
    int64_t size = 1;
    for (int v : scope) size *= choices_[v];
    std::vector<int> choices(choices_.size(), 0);
    // If that is too large, the factors keep their scopes.
    if (fixed) return Fix(variable);
    for (int64_t at = 0; at < size; ++at) {
      Unfold(scope, at, &choices);
      Front best;
      for (int choice = 0; choice < choices_[variable]; ++choice) {
        choices[variable] = choice;
        Front sum = {{.choice = choice}};
        for (int f : step.taken) sum = Sum(sum, factors_[f].fronts[Fold(factors_[f], choices)]);
        for (Pair& pair : sum) best.push_back(std::move(pair));
      }
      Thin(most_, &best);
      made.fronts.push_back(std::move(best));
    }
    for (int f : step.taken) Take(f);
    step.made = static_cast<int>(factors_.size());
    Add(std::move(made));
    steps_.push_back(std::move(step));
  }

  void Fix(int variable) {
    const std::vector<int> all = factors_of_[variable];
    std::vector<int> choices(choices_.size(), 0);
    for (int f : all) {
      ParetoFactor made;
      int64_t size = 1;
      for (int v : factors_[f].variables) {
        if (v == variable) continue;
        made.variables.push_back(v);
        size *= choices_[v];
      }
      for (int64_t at = 0; at < size; ++at) {
        Unfold(made.variables, at, &choices);
        choices[variable] = given_[variable];
        Front front = factors_[f].fronts[Fold(factors_[f], choices)];
        for (size_t i = 0; i < front.size(); ++i) {
          front[i].choice = given_[variable];
          front[i].parts = {static_cast<int>(i)};
        }
        made.fronts.push_back(std::move(front));
      }
      Take(f);
      steps_.push_back({variable, {f}, static_cast<int>(factors_.size())});
      Add(std::move(made));
    }
  }

  void Take(int f) {
    taken_.insert(f);
    for (int v : factors_[f].variables) std::erase(factors_of_[v], f);
  }

  // Traces back from the last step to the first: each tells its variable's choice and the point of
  // each factor.
  void Trace(std::vector<int> picked, std::vector<int>* choices) const {
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      const ParetoFactor& made = factors_[step->made];
      const Pair& pair = made.fronts[Fold(made, *choices)][picked[step->made]];
      (*choices)[step->variable] = pair.choice;
      for (size_t i = 0; i < step->taken.size(); ++i) picked[step->taken[i]] = pair.parts[i];
    }
  }

  const std::vector<int> choices_, given_;
  const int most_;
  std::vector<ParetoFactor> factors_;
  std::vector<std::vector<int>> factors_of_;  // by variable; without eliminated factors
  std::set<int> taken_;
  std::vector<Step> steps_;
};

}  // namespace

std::vector<ParetoPoint> ParetoFront(const std::vector<int>& choices, const std::vector<int>& given,
                                     const std::vector<Factor>& times,
                                     const std::vector<std::vector<double>>& memory, int most) {
  Eliminator eliminator(choices, given, most);
  for (const Factor& factor : times) {
    ParetoFactor front{factor.variables, {}};
    for (double time : factor.cost) front.fronts.push_back({{.time = time}});
    eliminator.Add(std::move(front));
  }
  for (int v = 0; v < static_cast<int>(choices.size()); ++v) {
    ParetoFactor front{{v}, {}};
    for (double bytes : memory[v]) front.fronts.push_back({{.memory = bytes}});
    eliminator.Add(std::move(front));
  }
  return eliminator.Run();
}

}  // namespace espalier
