// Initial parameters and large constants of a job's model. A message to a worker is limited to
// 64 MiB, so they are not part of programs: the coordinator writes them to a folder, and every
// worker reads its part of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "ops/graph/graph.h"
#include "ops/graph/initial_value.h"

namespace espalier {

// Constants of more bytes are stored (LoweringOptions::max_literal_bytes).
constexpr int64_t kMaxLiteralBytes = 4096;

// The folder of one attempt of a job.
class StoredValues {
 public:
  // Writes `initial`, in the types of `graph`, and the large constants of `graph` to `folder`, in
  // the format of checkpoints, durably. Holds parts of about 16 MiB in memory. Writes nothing if
  // there are none of either. On error, and if the attempt ends before Remove, the folder may stay;
  // RemoveCheckpoints removes it with the job's other files.
  static absl::StatusOr<StoredValues> Write(FileSystem& files, const std::string& folder,
                                            const std::string& job_id, const Graph& graph,
                                            const std::vector<InitialValue>& initial);

  const std::string& folder() const { return folder_; }  // empty: nothing was written
  // Frees the disk space. Files that cannot be removed stay.
  void Remove();

 private:
  explicit StoredValues(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;
};

}  // namespace espalier
