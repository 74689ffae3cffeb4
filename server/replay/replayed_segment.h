// One segment of a replay on leased workers: compares its losses with the recording and stores its
// answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "espalier/v1/replay.pb.h"
#include "server/jobs/attempt.h"
#include "server/replay/answer_writer.h"
#include "server/replay/loss_check.h"
#include "server/replay/replay_planner.h"
#include "server/replay/segment_runner.h"
#include "server/replay/segment_work.h"

namespace espalier {

struct ReplayedSegmentTask {
  std::string replay_id;
  int number = 0;  // of the segment
  const ReplayedRun* run = nullptr;
  std::shared_ptr<const ReplayProgram> program;
  SegmentCut cut;
  int64_t counted_from = 0;     // earlier tries have compared the losses of the steps before
  std::vector<Member> members;  // by rank
};

class ReplayedSegment : public SegmentWork, private SegmentObserver {
 public:
  ReplayedSegment(const ReplayTools& tools, ReplayedSegmentTask task, OnProgress on_progress);

  // Other errors than those of SegmentWork as of SegmentRunner and AnswerStore.
  absl::Status Run() override;
  void Cancel() override { runner_.Cancel(); }
  std::optional<v1::ReplayDifference> difference() const override { return difference_; }

 private:
  absl::Status OnLoaded(const std::vector<v1::LoadProgramReply>& ranks) override;
  absl::Status OnStep(const v1::StepReport& report) override;
  absl::Status OnRows(std::vector<v1::HistoryRow> rows) override;
  // Writes down how far it is, and then the answers.
  absl::Status Store();
  void Report();

  const ReplayTools tools_;
  const ReplayedSegmentTask task_;
  const OnProgress on_progress_;
  SegmentRunner runner_;
  std::optional<LossCheck> check_;
  std::optional<v1::ReplayDifference> difference_;
  AnswerWriter answers_;
  absl::Time report_at_ = absl::InfinitePast();
  int64_t checked_ = -1;  // the last step whose loss was compared
  SegmentProgress progress_;
};

}  // namespace espalier
