// Which objects a worker may read and write through the Storage service.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "espalier/v1/storage.pb.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"

namespace espalier {

// Thread-safe.
class ObjectAccess {
 public:
  // Both must outlive it.
  ObjectAccess(const WorkerRegistry* workers, Rendezvous* rendezvous)
      : workers_(*workers), rendezvous_(*rendezvous) {}

  // FailedPrecondition for a stale lease, a worker that does not work for the job, or an attempt
  // that is not the job's current one.
  absl::Status CheckCaller(const v1::StorageCaller& caller) const;
  // PermissionDenied unless the name is beneath the folder of the caller's job.
  absl::Status CheckWrite(const v1::StorageCaller& caller, const std::string& name) const;
  // PermissionDenied unless it is, or beneath the folder of the job that the caller replays, or
  // beneath the artifacts. `name` may be a folder.
  absl::Status CheckRead(const v1::StorageCaller& caller, const std::string& name) const;

 private:
  const WorkerRegistry& workers_;
  Rendezvous& rendezvous_;
};

}  // namespace espalier
