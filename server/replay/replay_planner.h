// What a replay has to do: which runs, which steps, from which checkpoints, and what that takes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/net/caller.h"
#include "espalier/v1/recording.pb.h"
#include "espalier/v1/replay.pb.h"
#include "server/jobs/attempt.h"
#include "server/recordings/recording_store.h"
#include "server/recordings/run_names.h"
#include "server/replay/replay_program.h"
#include "server/replay/segments.h"
#include "server/store/job_store.h"

namespace espalier {

// A run that is replayed.
struct ReplayedRun {
  std::string job_id;
  v1::Recording recording;  // with attempts and checkpoints
  v1::TrainingSpec spec;    // with its graph
  LoggedSteps logged;
  // Checkpoints that only a spool has which is not used now, by steps done; `recording` is without
  // them.
  std::map<int64_t, std::string> elsewhere;
  absl::Status inputs;  // CheckInputs; an error only where the state at checkpoints is all
  // By attempt of the recording, of those whose steps are trained; else null.
  std::vector<std::shared_ptr<const ReplayProgram>> programs;

  // At checkpoints:
  ReplayQuestions state_questions;
  ReplayQuestions evaluation_questions;
  // By the plan of the last attempt. Null: this version makes another graph of the model, or
  // `inputs` is an error.
  std::shared_ptr<const ReplayProgram> state_program;
  // Of SpecToEvaluate, and the program made of it by that plan; null: nothing is evaluated, or, of
  // the program, as for state_program.
  std::shared_ptr<const v1::TrainingSpec> evaluated;
  std::shared_ptr<const ReplayProgram> evaluation_program;
  std::string evaluation_prefix;  // of its answers: EvaluationPrefix

  // "NAME@3"
  std::string name() const;
  // With the run's experiment, version and job.
  v1::HistoryRow Row() const;
  // Of the recording's attempts, the one that trained this step. REQUIRES: there is one.
  size_t AttemptAt(int64_t step) const;
  // Of the plan of that attempt.
  size_t RanksAt(int64_t step) const;
  // Steps done at each checkpoint, ascending.
  std::vector<int64_t> checkpoints() const;
  // Those of at_checkpoints within [first_step, end_step), ascending, with 0 if `segment` can read
  // the initial values.
  std::vector<int64_t> CheckpointsOf(const v1::ReplaySegment& segment, int64_t every) const;
  // The recording's checkpoint after so many steps; null: there is none.
  const v1::RecordedCheckpoint* Find(int64_t checkpoint) const;
  // Its folder within the job's folder of the checkpoint store; empty: there is none.
  std::string FolderOf(int64_t checkpoint) const;
  // Why the state at step 0 is not read as that at checkpoints is; empty: it is.
  std::string WhyNoInitialState() const;
};

struct PlannedReplay {
  std::vector<ReplayedRun> runs;
  v1::ReplayEstimate estimate;
};

struct PlanTotals;

// Estimates: of loading a program and a checkpoint, and of reading another checkpoint.
double LoadSeconds(const ReplayedRun& run);
double ReadSeconds(const ReplayedRun& run);

// InvalidArgument if the replay may not use as many workers as a plan has ranks.
absl::Status CheckWorkers(const v1::ReplaySpec& spec, const ReplayedRun& run, size_t ranks);

// Thread-safe.
class ReplayPlanner {
 public:
  using FindRuns = std::function<absl::StatusOr<std::vector<RunName>>(
      absl::string_view run, RunVersions versions, const Caller& caller)>;

  // `tools` and `jobs` must outlive it.
  ReplayPlanner(const AttemptTools& tools, const JobStore* jobs, FindRuns find)
      : tools_(tools), jobs_(*jobs), find_(std::move(find)) {}

  // The jobs that `run` names. Errors as for RunNames::Find.
  absl::StatusOr<std::vector<std::string>> Find(const std::string& run, const Caller& caller,
                                                RunVersions versions = RunVersions::kNewest) const;

  // Errors as of the Replay service's Estimate.
  absl::StatusOr<PlannedReplay> Plan(const v1::ReplaySpec& spec,
                                     const std::vector<std::string>& job_ids) const;

  // What can be asked of a run's last steps. Errors as of Recordings.ListValues.
  absl::Status ListValues(const v1::ListRunValuesRequest& request, const Caller& caller,
                          v1::ListRunValuesReply* reply) const;

  // What a replay asks. Errors as of ParseQuestions.
  absl::StatusOr<ReplayQuestions> Parse(const v1::ReplaySpec& spec) const {
    return ParseQuestions(*tools_.registry, spec);
  }

  // Adds the programs of segments that train from these checkpoints on, where the run lacks them.
  absl::Status AddPrograms(const v1::ReplaySpec& spec, const std::vector<int64_t>& checkpoints,
                           ReplayedRun* run) const;

  // Programs by a plan that is made for these devices, whatever the recording's is. Measures
  // nothing. Errors as of ReplayProgram::Make and CalibratedPlanner::Make.
  absl::StatusOr<std::shared_ptr<const ReplayProgram>> PlanFor(
      const v1::TrainingSpec& spec, const ReplayQuestions& asked,
      const std::vector<v1::Device>& devices) const;

 private:
  // What can be asked at checkpoints of a run whose inputs are not there; that error if no
  // checkpoint is stored.
  absl::StatusOr<std::vector<v1::RunValue>> StateOf(const ReplayedRun& run) const;
  absl::StatusOr<ReplayedRun> LoadRun(const v1::ReplaySpec& spec, const std::string& job_id) const;
  // Add what a run has to do to the estimate.
  absl::Status AddTraining(const v1::ReplaySpec& spec, ReplayedRun* run, PlanTotals* totals) const;
  absl::Status AddCheckpoints(const v1::ReplaySpec& spec, ReplayedRun* run,
                              PlanTotals* totals) const;
  // Workers that may work at once.
  int MostWorkers(const v1::ReplaySpec& spec) const;

  const AttemptTools& tools_;
  const JobStore& jobs_;
  const FindRuns find_;
};

}  // namespace espalier
