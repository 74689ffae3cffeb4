// Who uses recordings of jobs, and must know when one is deleted.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier {

// Thread-safe.
class JobDeletionListener {
 public:
  virtual ~JobDeletionListener() = default;

  // Before anything of the job is removed. An error refuses the deletion.
  virtual absl::Status BeforeDeletion(const std::string& job_id) = 0;
  // After each BeforeDeletion that returned OK. `deleted`: the job is gone; otherwise it is still
  // there, perhaps without its checkpoints.
  virtual void AfterDeletion(const std::string& job_id, bool deleted) = 0;
};

}  // namespace espalier
