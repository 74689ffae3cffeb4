#include "planner/search/variable_elimination.h"

#include <cstddef>
#include <set>
#include <utility>

namespace espalier {
namespace {

constexpr int64_t kMostTableSums = 4'000'000;  // per elimination

}  // namespace

Elimination::Elimination(std::vector<int> choices, std::vector<int> given)
    : choices_(std::move(choices)), given_(std::move(given)), factors_of_(choices_.size()) {}

void Elimination::Add(Factor factor) {
  for (int v : factor.variables) factors_of_[v].push_back(static_cast<int>(factors_.size()));
  factors_.push_back(std::move(factor));
}

void Elimination::EliminateAllBut(const std::vector<int>& kept) {
  std::vector<double> sums(choices_.size());
  std::set<std::pair<double, int>> left;  // cheapest first
  const std::set<int> stay(kept.begin(), kept.end());
  for (int v = 0; v < static_cast<int>(choices_.size()); ++v) {
    sums[v] = Sums(v);
    if (stay.count(v) == 0) left.emplace(sums[v], v);
  }
  while (!left.empty()) {
    const int next = left.begin()->second;
    left.erase(left.begin());
    const std::vector<int> neighbors = Scope(next);
    Eliminate(next);
    for (int v : neighbors) {
      if (stay.count(v) > 0) continue;
      left.erase({sums[v], v});
      sums[v] = Sums(v);
      left.emplace(sums[v], v);
    }
  }
}

std::vector<int> Elimination::Run() {
  EliminateAllBut({});
  std::vector<int> best(choices_.size(), 0);
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    int64_t at = 0;
    for (int v : step->scope) at = at * choices_[v] + best[v];
    best[step->variable] = step->best[at];
  }
  return best;
}

std::vector<double> Elimination::Table(const std::vector<int>& kept) {
  EliminateAllBut(kept);
  std::vector<Factor> left;
  for (const Factor& f : factors_) {
    if (!f.cost.empty()) left.push_back(f);
  }
  std::vector<double> table;
  ForEach(kept, left, [&](const std::vector<int64_t>& offsets) {
    double sum = 0;
    for (size_t f = 0; f < left.size(); ++f) sum += left[f].cost[offsets[f]];
    table.push_back(sum);
  });
  return table;
}

std::vector<int> Elimination::Scope(int variable) const {
  std::set<int> scope;
  for (int f : factors_of_[variable]) {
    scope.insert(factors_[f].variables.begin(), factors_[f].variables.end());
  }
  scope.erase(variable);
  return {scope.begin(), scope.end()};
}

double Elimination::Sums(int variable) const {
  double sums = choices_[variable];
  for (int v : Scope(variable)) sums *= choices_[v];
  return sums;
}

void Elimination::Eliminate(int variable) {
  const bool fixed = Sums(variable) > kMostTableSums;
  Step step{variable, Scope(variable), {}};
  std::vector<Factor> taken;
  for (int f : std::exchange(factors_of_[variable], {})) {
    taken.push_back(std::exchange(factors_[f], {}));
    for (int v : taken.back().variables) std::erase(factors_of_[v], f);
  }
  if (fixed) {
    step.scope.clear();
    step.best = {given_[variable]};
    for (const Factor& f : taken) Add(Fix(f, variable));
  } else {
    Add(Minimize(variable, taken, &step));
  }
  steps_.push_back(std::move(step));
}

int64_t Elimination::Stride(const Factor& f, int variable) const {
  int64_t stride = 1;
  for (size_t i = f.variables.size(); i-- > 0;) {
    if (f.variables[i] == variable) return stride;
    stride *= choices_[f.variables[i]];
  }
  return 0;
}

// Calls visit(offsets into the factors) for all choices of the scope, the first outermost.
template <typename Visit>
void Elimination::ForEach(const std::vector<int>& scope, const std::vector<Factor>& factors,
                          Visit visit) const {
  std::vector<std::vector<int64_t>> strides(scope.size());
  for (size_t i = 0; i < scope.size(); ++i) {
    for (const Factor& f : factors) strides[i].push_back(Stride(f, scope[i]));
  }
  std::vector<int> at(scope.size(), 0);
  std::vector<int64_t> offsets(factors.size(), 0);
  while (true) {
    visit(offsets);
    size_t i = scope.size();
    while (i-- > 0) {
      const int64_t step = ++at[i] < choices_[scope[i]] ? 1 : 1 - choices_[scope[i]];
      for (size_t f = 0; f < factors.size(); ++f) offsets[f] += step * strides[i][f];
      if (step == 1) break;
      at[i] = 0;
    }
    if (i == static_cast<size_t>(-1)) return;
  }
}

Factor Elimination::Minimize(int variable, const std::vector<Factor>& taken, Step* step) const {
  Factor rest{step->scope, {}};
  std::vector<int64_t> strides;
  for (const Factor& f : taken) strides.push_back(Stride(f, variable));
  ForEach(step->scope, taken, [&](const std::vector<int64_t>& offsets) {
    int best = 0;
    double least = 0;
    for (int choice = 0; choice < choices_[variable]; ++choice) {
      double sum = 0;
      for (size_t f = 0; f < taken.size(); ++f) {
        sum += taken[f].cost[offsets[f] + choice * strides[f]];
      }
      if (choice > 0 && sum >= least) continue;
      best = choice;
      least = sum;
    }
    step->best.push_back(best);
    rest.cost.push_back(least);
  });
  return rest;
}

Factor Elimination::Fix(const Factor& f, int variable) const {
  Factor rest;
  for (int v : f.variables) {
    if (v != variable) rest.variables.push_back(v);
  }
  const int64_t start = given_[variable] * Stride(f, variable);
  ForEach(rest.variables, {f}, [&](const std::vector<int64_t>& offsets) {
    rest.cost.push_back(f.cost[start + offsets[0]]);
  });
  return rest;
}

}  // namespace espalier
