// Exact minimization of a sum over a graph by variable elimination (Bertele and Brioschi,
// "Nonserial dynamic programming", 1972).
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

// A term of the sum: its cost for each choice of its variables, the first outermost.
struct Factor {
  std::vector<int> variables;
  std::vector<double> cost;
};

class Elimination {
 public:
  // `choices`: number of choices by variable. `given`: the choice of variables whose elimination
  // would be too expensive.
  Elimination(std::vector<int> choices, std::vector<int> given);

  void Add(Factor factor);

  // Returns the best choice of each variable.
  std::vector<int> Run();

  // Returns the least sum for every choice of `kept`, the first outermost, minimized over all other
  // variables.
  std::vector<double> Table(const std::vector<int>& kept);

 private:
  struct Step {
    int variable = 0;
    std::vector<int> scope;
    std::vector<int> best;  // by the choices of `scope`
  };

  std::vector<int> Scope(int variable) const;
  double Sums(int variable) const;
  void EliminateAllBut(const std::vector<int>& kept);
  void Eliminate(int variable);
  // Distance in `f` between neighboring choices of `variable`; 0 if it is not one of its variables.
  int64_t Stride(const Factor& f, int variable) const;
  template <typename Visit>
  void ForEach(const std::vector<int>& scope, const std::vector<Factor>& factors,
               Visit visit) const;
  Factor Minimize(int variable, const std::vector<Factor>& taken, Step* step) const;
  Factor Fix(const Factor& f, int variable) const;

  const std::vector<int> choices_, given_;
  std::vector<Factor> factors_;               // empty once eliminated
  std::vector<std::vector<int>> factors_of_;  // by variable
  std::vector<Step> steps_;
};

}  // namespace espalier
