// Which folders a call to this worker may name.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// The coordinator's data folder, which holds all checkpoints and models of its jobs: even the
// coordinator cannot make the worker read or write folders outside. Thread-safe.
class DataFolder {
 public:
  // `given`: of --data-dir; empty: what the coordinator names when the worker joins.
  explicit DataFolder(std::string given = "") : given_(std::move(given)) {}

  // Call after each join. FailedPrecondition if there is no usable folder.
  absl::Status Join(const std::string& of_coordinator);

  // As given or named; empty before the first join.
  std::string path() const;

  // PermissionDenied names `field` unless `path`, with links followed, is beneath the folder.
  absl::Status Check(const std::string& field, const std::string& path) const;

 private:
  const std::string given_;
  mutable absl::Mutex mutex_;
  std::string path_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
