// Evaluates checkpoints of a run on leased workers, and stores the answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/replay/answer_writer.h"
#include "server/replay/checkpoint_evaluations.h"
#include "server/replay/segment_work.h"
#include "server/replay/state_segment.h"

namespace espalier {

class EvaluationSegment : public SegmentWork, private CheckpointEvaluationObserver {
 public:
  // `spec` is of SpecToEvaluate and `program` is made of it; both are for `members`.
  EvaluationSegment(const ReplayTools& tools, CheckpointSegmentTask task,
                    std::shared_ptr<const v1::TrainingSpec> spec,
                    std::shared_ptr<const ReplayProgram> program, std::vector<Member> members,
                    OnProgress on_progress);

  // Other errors as of CheckpointEvaluations.
  absl::Status Run() override;
  void Cancel() override;

 private:
  absl::Status OnRows(const EvaluatedCheckpoint& checkpoint,
                      std::vector<v1::HistoryRow> rows) override;

  const ReplayTools tools_;
  const CheckpointSegmentTask task_;
  const std::shared_ptr<const v1::TrainingSpec> spec_;
  const std::shared_ptr<const ReplayProgram> program_;
  const std::vector<Member> members_;
  const OnProgress on_progress_;
  AnswerWriter answers_;
  int64_t evaluated_ = -1;  // steps done at the last checkpoint whose rows there are
  SegmentProgress progress_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<CheckpointEvaluations> evaluations_;  // set under mutex_
};

}  // namespace espalier
