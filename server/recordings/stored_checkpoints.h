// The checkpoints of a job that a store has, from the names of their files alone: one call, however
// many there are. What is in them is checked by who reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/object_reader.h"

namespace espalier {

// The folder within a job's folder with copies of spooled checkpoints that are being read
// (fetched_checkpoint.h).
inline constexpr char kFetchedFolder[] = "fetched";

struct StoredCheckpoints {
  struct Checkpoint {
    std::string directory;  // within the job's folder: "attempt-1/step-40-attempt-1"
    int64_t steps_done = 0;
    int64_t bytes = 0;
  };
  std::vector<Checkpoint> checkpoints;  // with a manifest; in ascending order of steps
  // Folders of checkpoints without one: being written, or left over.
  std::vector<std::string> incomplete;
  // Files that the checkpoints of an attempt share, within the job's folder.
  std::vector<std::string> shared;
  int64_t shared_bytes = 0;

  int64_t bytes() const;  // of all
  // The shared files of attempts without checkpoints.
  std::vector<std::string> unused_shared() const;
};

// `objects` are all of a store, or of the job's folder.
absl::StatusOr<StoredCheckpoints> CheckpointsAmong(const std::vector<ObjectReader::Object>& objects,
                                                   const std::string& job, ObjectReader& store);
absl::StatusOr<StoredCheckpoints> ListStoredCheckpoints(ObjectReader& store,
                                                        const std::string& job);

// The number of the attempt that wrote it; 0: it cannot be read from the name.
int32_t AttemptOf(const std::string& directory);

}  // namespace espalier
