// Checks a worker that wants to join, so that its mistakes show then and not in a job: the
// coordinator must reach the worker at the address that it gives. Also finds out whether the worker
// shares the coordinator's data folder.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "espalier/v1/cluster.pb.h"
#include "server/jobs/worker_client.h"

namespace espalier {

// The coordinator's data folder.
struct DataDir {
  std::string path;  // absolute
  std::string id;    // what kDataDirIdFile (storage/data_dir_id.h) in it holds
};

// Reads the folder's id, or makes a random one.
absl::StatusOr<DataDir> IdentifyDataDir(FileSystem& files, const std::string& path);

// Calls the worker, and waits at most a few seconds for its answer. Returns whether it sees the
// folder and may write there; FailedPrecondition with what to do if the worker cannot be reached,
// or another process answers at its address. Thread-safe.
absl::StatusOr<bool> CheckJoiningWorker(const WorkerDialer& dial, const DataDir& data_dir,
                                        const v1::JoinRequest& request);

}  // namespace espalier
