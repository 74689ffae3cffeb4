// Which checkpoints have copies in a spool (spool.h), and which copies are to be removed: what the
// job store knows, so that no answer depends on a spool that cannot be reached.
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/recording.pb.h"
#include "server/store/job_store.h"

namespace espalier {

// Thread-safe. A spool is named by its URL or folder.
class SpoolIndex {
 public:
  // `jobs` must outlive it.
  explicit SpoolIndex(JobStore* jobs) : jobs_(jobs) {}

  // Copies of a job's checkpoints, in all spools.
  absl::StatusOr<std::vector<v1::RecordedCheckpoint>> CopiesOf(const std::string& job_id) const;
  // NotFound if the job's copies are to be removed. Durable when it returns, as are the following.
  absl::Status Add(const std::string& job_id, const v1::RecordedCheckpoint& copy);

  // Copies of a deleted job are to be removed: from `spool`, where one may be under way (empty:
  // there is none), and wherever there are some.
  absl::Status MarkDeleted(const std::string& job_id, const std::string& spool);
  // The jobs whose copies in this spool are to be removed.
  absl::StatusOr<std::vector<std::string>> DeletedOf(const std::string& spool) const;
  // They are.
  absl::Status Removed(const std::string& job_id, const std::string& spool);

 private:
  absl::StatusOr<v1::Recording> ReadCopies(const std::string& job_id) const;
  absl::StatusOr<v1::SpoolDeletions> ReadDeletions() const;

  JobStore* const jobs_;
  mutable absl::Mutex writing_;  // of what is read before
};

}  // namespace espalier
