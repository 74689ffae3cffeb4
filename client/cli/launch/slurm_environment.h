// What SLURM tells the processes of a batch job in their environment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Returns the value of an environment variable; null: it is not set.
using GetEnv = std::function<const char*(const char*)>;

// Returns the nodes of a list as SLURM writes it: "n1,gpu[01-03,7],rack[1-2]-n[1-2]".
absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list);

// Returns the numbers of tasks by node as SLURM writes them: "2(x3),1" is 2, 2, 2, 1.
absl::StatusOr<std::vector<int>> ExpandTasks(absl::string_view tasks);

// What the machine says, besides SLURM.
struct MachineFacts {
  int cpus = 1;        // in this process's CPU mask
  int64_t memory = 0;  // bytes that this process may use
};

// What one task's worker is started with.
struct SlurmTask {
  std::string name;            // the node's, and "-1" for its second task and so on
  std::string device = "cpu";  // or "cuda:0"
  int threads = 1;
  int64_t memory = 0;    // bytes of this task's share
  std::string launcher;  // address of the host on which srun was called; empty: unknown
  std::string cache;     // folder of the node's own disk; empty: none is named
};

// Reads the environment of a task that srun has started. FailedPrecondition if srun has not, or if
// there are fewer GPUs than tasks on the node.
absl::StatusOr<SlurmTask> ReadSlurmTask(const GetEnv& getenv, const MachineFacts& machine);

// What the batch job is.
struct SlurmJob {
  std::string id;
  std::vector<std::string> nodes;
  std::string submit_folder;
  int restarts = 0;  // how often it was requeued
  int tasks = 0;     // 0: unknown
};

// FailedPrecondition outside of a job.
absl::StatusOr<SlurmJob> ReadSlurmJob(const GetEnv& getenv);

}  // namespace espalier
