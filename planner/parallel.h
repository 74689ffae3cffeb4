// Runs independent parts of a planning problem in parallel.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "planner/planner.h"

namespace espalier {

// A problem with its own copy of the cost model.
using OwnProblem = std::shared_ptr<const PlanProblem>;

// Calls work(i, problem) for 0 to count - 1, in parallel if `problem.for_each` does and its cost
// model has forks; returns when all are done. Each call gets its own problem, without progress,
// whose cost model is a fork of the original: calls do not see what others measure, so results do
// not depend on threads. Finally the original model merges all forks in the order of i.
inline void ForEachApart(const PlanProblem& problem, int count,
                         const std::function<void(int, const OwnProblem&)>& work) {
  struct Apart {
    PlanProblem problem;
    std::unique_ptr<CostModel> cost;
  };
  std::vector<std::shared_ptr<Apart>> parts;
  bool forks = true;
  for (int i = 0; i < count; ++i) {
    auto part = std::make_shared<Apart>(Apart{problem, nullptr});
    part->problem.progress = nullptr;
    if (problem.cost != nullptr) {
      part->cost = problem.cost->Fork();
      if (part->cost != nullptr) part->problem.cost = part->cost.get();
      forks = forks && part->cost != nullptr;
    }
    parts.push_back(std::move(part));
  }
  const auto run = [&](int i) { work(i, OwnProblem(parts[i], &parts[i]->problem)); };
  if (problem.for_each && forks && count > 1) {
    problem.for_each(count, run);
  } else {
    for (int i = 0; i < count; ++i) run(i);
  }
  for (const std::shared_ptr<Apart>& part : parts) {
    if (part->cost != nullptr) problem.cost->Join(*part->cost);
  }
}

}  // namespace espalier
