// Runs one segment of a replay: loads the programs and the checkpoint on leased workers, trains the
// steps again and hands out their reports and answers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/replay.pb.h"
#include "server/jobs/attempt.h"
#include "server/replay/replay_program.h"
#include "server/replay/replay_ranks.h"
#include "server/replay/segments.h"

namespace espalier {

struct SegmentTask {
  std::string name;  // ReplayAttemptName
  uint64_t attempt = 1;
  std::string job_id;
  const v1::TrainingSpec* spec = nullptr;  // outlives the segment, as does the program
  const ReplayProgram* program = nullptr;
  SegmentCut cut;
  std::string checkpoint;  // RecordedCheckpoint.directory; empty: the initial values
  std::string replay_id;   // with `number`, of the segment: who reads the checkpoint
  int number = 0;
  std::vector<Member> members;  // by rank
};

// Called by one thread at a time. An error ends the segment, which returns it.
class SegmentObserver {
 public:
  virtual ~SegmentObserver() = default;
  // What the ranks compute with, once they have loaded.
  virtual absl::Status OnLoaded(const std::vector<v1::LoadProgramReply>& ranks) = 0;
  // The merged report of a step that was trained again.
  virtual absl::Status OnStep(const v1::StepReport& report) = 0;
  // The answers of a logged step; see StepAnswers.
  virtual absl::Status OnRows(std::vector<v1::HistoryRow> rows) = 0;
  virtual void OnHashes(size_t /*rank*/, const v1::InstructionHashes& /*hashes*/) {}
};

class SegmentRunner {
 public:
  // `tools` and `observer` must outlive it.
  SegmentRunner(const AttemptTools& tools, SegmentTask task, SegmentObserver* observer);

  // Blocks. Aborted if a worker is no longer idle; errors of FetchedCheckpoint, ReplayRanks and of
  // the observer. With `first_hashed`, the steps from that one on are hashed, and none is logged.
  // Once.
  absl::Status Run(std::optional<int64_t> first_hashed = std::nullopt);
  // Ends Run with Cancelled. Thread-safe; does not block.
  void Cancel();

 private:
  std::vector<v1::LoadProgramRequest> Requests(const std::string& values,
                                               const std::string& checkpoint) const;
  absl::Status RunSteps(int64_t first, int64_t end, bool logs, std::optional<int64_t> hash_step);

  const AttemptTools& tools_;
  const SegmentTask task_;
  SegmentObserver* const observer_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ReplayRanks> ranks_;
};

}  // namespace espalier
