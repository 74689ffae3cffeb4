// The answers of replays, in the checkpoint store: "replays/<job>/<replay>/<chunk>", where a chunk
// has the rows of some steps of a segment. What was written stays as it is.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/replay.pb.h"
#include "storage/checkpoint_store.h"

namespace espalier {

struct AnswerChunk {
  std::string replay_id;
  int segment = 0;
  int64_t first_step = 0, last_step = 0;  // of its rows

  auto operator<=>(const AnswerChunk&) const = default;
};

// Thread-safe.
class AnswerStore {
 public:
  // `store` must outlive it.
  explicit AnswerStore(CheckpointStore* store) : store_(*store) {}

  // Durable when it returns. REQUIRES: rows, in the order of steps, of steps without a chunk yet.
  absl::Status Append(const std::string& job_id, const std::string& replay_id, int segment,
                      const std::vector<v1::HistoryRow>& rows);
  // The chunks of one replay, or of all of a job, by replay, segment and step; none of hidden ones.
  absl::StatusOr<std::vector<AnswerChunk>> List(const std::string& job_id,
                                                const std::string& replay_id = "") const;
  // DataLoss if it cannot be read as rows.
  absl::StatusOr<v1::QueryHistoryReply> Read(const std::string& job_id,
                                             const AnswerChunk& chunk) const;
  // Removes those of one replay, or of all of a job.
  absl::Status Remove(const std::string& job_id, const std::string& replay_id = "");
  // Lists nothing of a replay that is being deleted, until all of it is removed.
  void Hide(const std::string& replay_id, bool hidden);

 private:
  CheckpointStore& store_;
  mutable absl::Mutex mutex_;
  std::set<std::string> hidden_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
