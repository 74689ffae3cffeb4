// The buckets in which a coordinator keeps checkpoints and artifacts.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/job_store.h"
#include "storage/checkpoint_store.h"

namespace espalier {

struct ObjectStoreUse {
  std::string flag;      // that names the store, for messages: "artifact-store"
  std::string url;       // its value
  std::string identity;  // of the jobs to which the objects belong
  std::string record;    // the job store's blob that says where the objects are; empty: none does
};

// Opens the store, checks that it can be used, and marks its prefix as that of the jobs. Returns
// FailedPrecondition, with the remedy, if the prefix is that of other jobs, or the record says that
// the objects are elsewhere; not if they were copied, with the mark. `cancelled`, which may be
// null, ends the calls of the result once it is true.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenObjectStore(
    const ObjectStoreUse& use, JobStore* jobs,
    std::shared_ptr<const std::atomic<bool>> cancelled = nullptr);

// Checks only that the store can be used: for a coordinator that may have to lead later.
absl::Status CheckObjectStore(const std::string& flag, const std::string& url);

}  // namespace espalier
