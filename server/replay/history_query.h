// Answers Replay.Query: what was recorded of runs, and the answers to replays of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/caller.h"
#include "espalier/v1/replay.pb.h"
#include "server/recordings/recording_store.h"
#include "server/replay/answer_store.h"
#include "server/replay/replay_planner.h"
#include "server/store/job_store.h"

namespace espalier {

// "histogram(grad(w), 64)" for the name "grad(w)" and the reduction "histogram(64)".
std::string ProbeTextOf(const v1::HistoryRow& row);

// Thread-safe. The pointers must outlive it.
class HistoryQuery {
 public:
  HistoryQuery(const ReplayPlanner* planner, const RecordingStore* recordings, const JobStore* jobs,
               const AnswerStore* answers)
      : planner_(*planner), recordings_(*recordings), jobs_(*jobs), answers_(*answers) {}

  using Send = std::function<bool(const v1::QueryHistoryReply&)>;

  // Sends rows by run, name, reduction and step. Ends early once `send` returns false.
  absl::Status Query(const v1::QueryHistoryRequest& request, const Caller& caller,
                     const Send& send) const;

 private:
  struct RecordedValue {
    double value = 0;
    int64_t unix_ms = 0;
  };
  using Recorded = std::map<std::string, std::map<int64_t, RecordedValue>>;  // by name and step

  absl::StatusOr<Recorded> ReadRecorded(const v1::QueryHistoryRequest& request,
                                        const std::string& job_id) const;
  // By name, reduction and step; of one step what was recorded, then answers by their time.
  absl::Status SendRun(const v1::QueryHistoryRequest& request, const v1::HistoryRow& run,
                       const Send& send, bool* goes_on) const;

  const ReplayPlanner& planner_;
  const RecordingStore& recordings_;
  const JobStore& jobs_;
  const AnswerStore& answers_;
};

}  // namespace espalier
