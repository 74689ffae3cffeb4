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
#include "ops/graph/graph.h"
#include "ops/graph/initial_value.h"
#include "storage/checkpoint_store.h"

namespace espalier {

// Constants of more bytes are stored (LoweringOptions::max_literal_bytes).
constexpr int64_t kMaxLiteralBytes = 4096;

// The folder of one attempt of a job.
class StoredValues {
 public:
  // Writes `initial`, in the types of `graph`, and the large constants of `graph` to `folder` of
  // `store`, in the format of checkpoints, durably. Holds parts of about 16 MiB in memory. Writes
  // nothing if there are none of either. On error, and if the attempt ends before Remove, the
  // folder may stay; RemoveLeftValues removes it.
  static absl::StatusOr<StoredValues> Write(CheckpointStore& store, const std::string& folder,
                                            const std::string& job_id, const Graph& graph,
                                            const std::vector<InitialValue>& initial);

  const std::string& folder() const { return folder_; }  // empty: nothing was written
  // Frees the disk space. What cannot be removed stays, until RemoveLeftValues.
  void Remove();

 private:
  StoredValues(CheckpointStore& store, std::string folder)
      : store_(&store), folder_(std::move(folder)) {}

  CheckpointStore* store_;
  std::string folder_;
};

// Removes the values that killed attempts of a job have left.
void RemoveLeftValues(CheckpointStore& store, const std::string& job_id);

}  // namespace espalier
