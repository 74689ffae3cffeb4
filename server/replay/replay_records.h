// Replays in the job store, by id.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "server/store/job_store.h"

namespace espalier {

// Not thread-safe.
class ReplayRecords {
 public:
  // `jobs` must outlive it.
  explicit ReplayRecords(JobStore* jobs) : jobs_(*jobs) {}

  // Returns all, in the order of their first Put. Call before the others.
  absl::StatusOr<std::vector<v1::StoredReplay>> Load();
  // Durable when it returns. Replaces the replay of the same id.
  absl::Status Put(const v1::StoredReplay& replay);
  absl::Status Remove(const std::string& id);

 private:
  absl::Status PutIds();

  JobStore& jobs_;
  std::vector<std::string> ids_;
};

}  // namespace espalier
