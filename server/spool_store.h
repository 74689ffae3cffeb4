// The second store of checkpoints that espalierd's --spool names: a folder, such as a mounted disk,
// or a bucket.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "server/store/job_store.h"
#include "storage/checkpoint_store.h"

namespace espalier {

struct SpoolUse {
  std::string spool;     // as given
  std::string identity;  // of the jobs to which the copies belong
  // Folders and URLs that it must not be in, nor they in it.
  std::vector<std::string> others;
};

struct OpenedSpool {
  std::string url;  // the URL, or the folder's absolute path
  std::unique_ptr<CheckpointStore> store;
  // Returns Unavailable while the folder is not there; null: nothing needs to be checked.
  std::function<absl::Status()> check;
};

// Makes the folder, the first time, or checks that the bucket can be used, and marks the place as
// that of the jobs. FailedPrecondition, with the remedy, if it is that of other jobs, or one of the
// others. `files` must outlive the result. `cancelled` ends the calls of the result once it is
// true.
absl::StatusOr<OpenedSpool> OpenSpool(const SpoolUse& use, FileSystem& files, JobStore* jobs,
                                      std::shared_ptr<const std::atomic<bool>> cancelled);

}  // namespace espalier
