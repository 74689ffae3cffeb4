// Answers probes of parameters and optimizer state from a run's checkpoints, without workers.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/replay/answer_writer.h"
#include "server/replay/checkpoint_answers.h"
#include "server/replay/replay_planner.h"
#include "server/replay/segment_work.h"

namespace espalier {

struct CheckpointSegmentTask {
  std::string replay_id;
  int number = 0;  // of the segment
  const ReplayedRun* run = nullptr;
  ReplayQuestions questions;         // that this segment answers
  std::vector<int64_t> checkpoints;  // that are left, ascending
};

class StateSegment : public SegmentWork {
 public:
  // `program`, of the recorded plan: answers are those of its ranks. Null: of a plan for one
  // worker; then there must be no checkpoint of 0 steps.
  StateSegment(const ReplayTools& tools, CheckpointSegmentTask task,
               std::shared_ptr<const ReplayProgram> program, OnProgress on_progress);

  // Other errors as of CheckpointAnswers: DataLoss names a damaged file.
  absl::Status Run() override;
  void Cancel() override { cancelled_ = true; }

 private:
  absl::StatusOr<std::vector<v1::HistoryRow>> Read(int64_t checkpoint);
  // Sets what reads such checkpoints.
  absl::Status MakeReader(const StateTensors& tensors);

  const ReplayTools tools_;
  const CheckpointSegmentTask task_;
  const std::shared_ptr<const ReplayProgram> program_;
  const OnProgress on_progress_;
  AnswerWriter answers_;
  std::optional<CheckpointAnswers> reader_;
  GraphFragments fragments_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace espalier
