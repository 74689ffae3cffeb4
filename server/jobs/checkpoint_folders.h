// A job's checkpoints in the store: <job>/attempt-<n>/<one folder per checkpoint>.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/checkpoint_store.h"

namespace espalier {

// The folder within a job's folder in the data folder that holds the examples of its stream
// (example_stream.h).
inline constexpr char kStreamFolder[] = "stream";

// The folder within a job's folder for the checkpoints of an attempt.
std::string AttemptFolder(int32_t attempt);

// Returns the last two components of a checkpoint's path, which are what a job's record stores:
// they stay valid if the data folder is moved or spelled differently. Accepts full paths too
// (records of earlier releases). Empty (no checkpoint) stays empty.
std::string CheckpointWithinJob(const std::string& directory);

struct StoredCheckpoint {
  std::string within_job;  // as by CheckpointWithinJob; empty: none
  int64_t steps_done = 0;
};

// Returns the checkpoints of a job whose manifest can be read, those of most steps first. Errors
// are those of the store: then nobody knows which there are.
absl::StatusOr<std::vector<StoredCheckpoint>> ListCheckpoints(CheckpointStore& store,
                                                              const std::string& job);

// Returns the checkpoint of so many steps whose files are there; empty: there is none.
absl::StatusOr<StoredCheckpoint> FindCheckpoint(CheckpointStore& store, const std::string& job,
                                                int64_t steps_done);
// Returns the newest one of fewer steps; empty: there is none.
absl::StatusOr<StoredCheckpoint> FindCheckpointBefore(CheckpointStore& store,
                                                      const std::string& job, int64_t steps_done);

// Makes a damaged checkpoint no checkpoint any more, and all that share a damaged file with it, and
// returns the one to use in its place: the newest of at most as many steps, otherwise the oldest of
// more (the job's record may come from a backup), otherwise none, which is step 0. Its files have
// the manifest's sizes.
absl::StatusOr<StoredCheckpoint> ReplaceCheckpoint(CheckpointStore& store, const std::string& job,
                                                   const StoredCheckpoint& damaged);

// Checks that a checkpoint of `steps_done` is there: its manifest, and the sizes of its files.
// Returns an error for which MeansDamage holds if it is not.
absl::Status CheckCheckpoint(CheckpointStore& store, const std::string& folder, int64_t steps_done);
// Also reads all files and compares their hashes. Returns Cancelled once `stopped` returns true.
absl::Status VerifyCheckpoint(CheckpointStore& store, const std::string& folder, int64_t steps_done,
                              const std::function<bool()>& stopped);
// Whether an error of reading a checkpoint blames its files. If not, the same files may be read
// later.
bool MeansDamage(const absl::Status& status);

// Removes all of a job in the store except its stream, what replays read (kFetchedFolder), and the
// checkpoint `keep`, given as by
// CheckpointWithinJob, the newest one of fewer steps, which is used if `keep` turns out to be
// damaged, and those of `best_steps` steps, of a validation whose model is kept (0: none). If
// `keep` is not empty and has no manifest there, removes nothing: the rest may be all that is left
// of the job. Also stays what later attempts than `attempts` write: a coordinator that was stopped
// meanwhile may lead no more, and they are then the next leader's. Blocks; what cannot be removed
// stays.
void RemoveCheckpoints(CheckpointStore& store, const std::string& job, int32_t attempts,
                       const std::string& keep, int64_t best_steps = 0);

// The same of a job whose recording is kept: all checkpoints of at most `steps_done` steps stay,
// and what they share. Removes nothing if there is none of as many steps.
void RemoveUnrecorded(CheckpointStore& store, const std::string& job, int32_t attempts,
                      int64_t steps_done);

// Removes a checkpoint, its manifest first: what is left if that is interrupted is none.
absl::Status RemoveCheckpoint(CheckpointStore& store, const std::string& folder);

// Removes complete checkpoints of fewer steps than `newest`, except `spare` and those of
// `best_steps` steps, and what only they have shared. For the running attempt, which has written
// `newest` and may be writing others. Blocks.
void RemoveOlderCheckpoints(CheckpointStore& store, const std::string& job,
                            const StoredCheckpoint& newest, const std::string& spare,
                            int64_t best_steps = 0);

// Removes what checkpoints of attempts before `before` have shared, where an attempt has none any
// more. Returns the bytes of all shared files that the job has then.
absl::StatusOr<int64_t> RemoveUnusedShared(CheckpointStore& store, const std::string& job,
                                           int32_t before);

}  // namespace espalier
