// The programs of a recorded job, lowered again from its plan, with what its probes read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/training.pb.h"
#include "ops/probe/expression.h"
#include "planner/lowering/probe_points.h"
#include "planner/planner.h"
#include "server/jobs/attempt.h"
#include "server/jobs/prepare_job.h"
#include "server/replay/derived_values.h"
#include "server/replay/probe_set.h"

namespace espalier {

// Not movable: ProbePoints refers to the programs.
class ReplayProgram {
 public:
  // Prepares the job of `spec`, which has its graph, as its attempts did, and lowers `plan`.
  // FailedPrecondition if the plan is not for the graph that this program version makes of it: then
  // only another plan can replay the job. Other errors as PrepareJob, LowerPlan and FindProbes.
  static absl::StatusOr<std::unique_ptr<ReplayProgram>> Make(
      const AttemptTools& tools, const v1::TrainingSpec& spec, const v1::Plan& plan,
      const std::vector<ProbeExpression>& probes);

  const PreparedJob& prepared() const { return prepared_; }
  const v1::Plan& plan() const { return plan_; }
  const LoweredPlan& lowered() const { return lowered_; }
  // What the ranks read: the probes that the programs have, then derived().sources().
  const FoundProbes& probes() const { return probes_; }
  // Probes of what the programs do not have; Complete adds their answers to a step's.
  const DerivedValues& derived() const { return derived_; }
  size_t ranks() const { return lowered_.training.size(); }

 private:
  ReplayProgram() = default;

  // Sets probes_ and derived_.
  absl::Status Find(const OpRegistry& registry, const ProbePoints& points,
                    const std::vector<ProbeExpression>& probes);

  PreparedJob prepared_;
  v1::Plan plan_;
  LoweredPlan lowered_;
  FoundProbes probes_;
  DerivedValues derived_;
};

}  // namespace espalier
