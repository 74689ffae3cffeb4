// The programs of a recorded job, lowered again from its plan, with what its probes read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/training.pb.h"
#include "ops/probe/expression.h"
#include "planner/planner.h"
#include "server/jobs/attempt.h"
#include "server/jobs/prepare_job.h"
#include "server/replay/program_probes.h"

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
  // See ProgramProbes.
  const FoundProbes& probes() const { return probes_.read; }
  const DerivedValues& derived() const { return probes_.derived; }
  size_t ranks() const { return lowered_.training.size(); }

 private:
  ReplayProgram() = default;

  PreparedJob prepared_;
  v1::Plan plan_;
  LoweredPlan lowered_;
  ProgramProbes probes_;
};

}  // namespace espalier
