// The programs of a recorded job, lowered again from its plan, with what its probes read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/training.pb.h"
#include "planner/planner.h"
#include "server/jobs/attempt.h"
#include "server/jobs/prepare_job.h"
#include "server/replay/program_questions.h"

namespace espalier {

// Not movable: ProbePoints refers to the programs.
class ReplayProgram {
 public:
  // Prepares the job of `spec`, which has its graph, as its attempts did, and lowers `plan`.
  // FailedPrecondition if the plan is not for the graph that this program version makes of it: then
  // only another plan can replay the job. Other errors as PrepareJob, LowerPlan and FindQuestions.
  static absl::StatusOr<std::unique_ptr<ReplayProgram>> Make(const AttemptTools& tools,
                                                             const v1::TrainingSpec& spec,
                                                             const v1::Plan& plan,
                                                             const ReplayQuestions& asked);

  const PreparedJob& prepared() const { return prepared_; }
  const v1::Plan& plan() const { return plan_; }
  const LoweredPlan& lowered() const { return lowered_; }
  const ProgramQuestions& questions() const { return questions_; }
  // What the ranks read; see ProgramQuestions.
  const FoundProbes& probes() const { return questions_.probes.read; }
  size_t ranks() const { return lowered_.training.size(); }

 private:
  ReplayProgram() = default;

  PreparedJob prepared_;
  v1::Plan plan_;
  LoweredPlan lowered_;
  ProgramQuestions questions_;
};

}  // namespace espalier
