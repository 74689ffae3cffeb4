// One segment of a replay on leased workers: compares its losses with the recording and stores its
// answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "espalier/v1/replay.pb.h"
#include "server/jobs/attempt.h"
#include "server/replay/answer_store.h"
#include "server/replay/loss_check.h"
#include "server/replay/replay_planner.h"
#include "server/replay/segment_runner.h"
#include "server/store/job_store.h"

namespace espalier {

// What a replay uses. All must outlive it.
struct ReplayTools {
  const AttemptTools* attempts = nullptr;
  const ReplayPlanner* planner = nullptr;
  AnswerStore* answers = nullptr;
  const JobStore* jobs = nullptr;
  const Clock* clock = nullptr;
};

struct ReplayedSegmentTask {
  std::string replay_id;
  int number = 0;  // of the segment
  const ReplayedRun* run = nullptr;
  std::shared_ptr<const ReplayProgram> program;
  SegmentCut cut;
  std::vector<Member> members;  // by rank
};

struct SegmentProgress {
  int64_t steps_done = 0;  // of cut.steps()
  int64_t stored_rows = 0;
  v1::ReplayComparison comparison;
};

class ReplayedSegment : private SegmentObserver {
 public:
  // `on_progress` is called from one thread at a time, some times a second at most.
  ReplayedSegment(const ReplayTools& tools, ReplayedSegmentTask task,
                  std::function<void(const SegmentProgress&)> on_progress);

  // Blocks. OK once all answers are durable; Aborted if a worker was no longer idle, or a loss
  // differs from the record (see difference). Other errors as of SegmentRunner and AnswerStore.
  absl::Status Run();
  // Ends Run with Cancelled. Thread-safe; does not block.
  void Cancel() { runner_.Cancel(); }

  // After Run.
  const std::optional<v1::ReplayDifference>& difference() const { return difference_; }

 private:
  absl::Status OnLoaded(const std::vector<v1::LoadProgramReply>& ranks) override;
  absl::Status OnStep(const v1::StepReport& report) override;
  absl::Status OnRows(std::vector<v1::HistoryRow> rows) override;
  // Those of steps whose loss was compared.
  absl::Status StoreRows();
  void Report();

  const ReplayTools tools_;
  const ReplayedSegmentTask task_;
  const std::function<void(const SegmentProgress&)> on_progress_;
  SegmentRunner runner_;
  std::optional<LossCheck> check_;
  std::optional<v1::ReplayDifference> difference_;
  std::vector<v1::HistoryRow> rows_;  // not stored yet
  size_t rows_bytes_ = 0;
  absl::Time store_at_ = absl::InfiniteFuture(), report_at_ = absl::InfinitePast();
  int64_t checked_ = -1;  // the last step whose loss was compared
  SegmentProgress progress_;
};

}  // namespace espalier
