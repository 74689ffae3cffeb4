// Makes plans, for tests.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "planner/planner.h"

namespace espalier {

inline std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

inline v1::Plan Made(const PlanProblem& problem, const v1::SearchOptions& options = {}) {
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::Plan();
}

}  // namespace espalier
