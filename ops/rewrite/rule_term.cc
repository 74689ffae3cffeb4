#include "ops/rewrite/rule.h"

namespace espalier {

std::optional<double> RuleTerm::literal() const {
  double value = 1;
  for (const Factor& factor : factors) {
    if (!factor.variable.empty()) return std::nullopt;
    value = factor.divides ? value / factor.number : value * factor.number;
  }
  return value;
}

std::string RuleTerm::variable() const {
  return factors.size() == 1 && !factors[0].divides ? factors[0].variable : "";
}

std::optional<double> RuleTerm::Evaluate(const std::map<std::string, double>& numbers) const {
  double value = 1;
  for (const Factor& factor : factors) {
    double number = factor.number;
    if (!factor.variable.empty()) {
      auto it = numbers.find(factor.variable);
      if (it == numbers.end()) return std::nullopt;
      number = it->second;
    }
    value = factor.divides ? value / number : value * number;
  }
  return value;
}

}  // namespace espalier
