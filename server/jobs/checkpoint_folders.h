// Paths of a job's checkpoints: <checkpoint root>/<job>/attempt-<n>/<one folder per checkpoint>.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/file_system.h"

namespace espalier {

// The folder within a job's folder that holds the examples of its stream (example_stream.h).
inline constexpr char kStreamFolder[] = "stream";

// Returns the last two components of a checkpoint's path, which are what a job's record stores:
// they stay valid if the data folder is moved or spelled differently. Accepts full paths too
// (records of earlier releases). Empty (no checkpoint) stays empty.
std::string CheckpointWithinJob(const std::string& directory);

struct StoredCheckpoint {
  std::string within_job;  // as by CheckpointWithinJob; empty: none
  int64_t steps_done = 0;
};

// Returns the checkpoints in a job's folder whose manifest can be read, those of most steps first.
std::vector<StoredCheckpoint> ListCheckpoints(FileSystem& files, const std::string& job_folder);

// Returns the checkpoint of so many steps whose files are there; empty: there is none.
StoredCheckpoint FindCheckpoint(FileSystem& files, const std::string& job_folder,
                                int64_t steps_done);
// Returns the newest one of fewer steps; empty: there is none.
StoredCheckpoint FindCheckpointBefore(FileSystem& files, const std::string& job_folder,
                                      int64_t steps_done);

// Makes a damaged checkpoint no checkpoint any more, and returns the one to use in its place: the
// newest of at most as many steps, otherwise the oldest of more (the job's record may come from a
// backup), otherwise none, which is step 0. Its files have the manifest's sizes.
StoredCheckpoint ReplaceCheckpoint(FileSystem& files, const std::string& job_folder,
                                   const StoredCheckpoint& damaged);

// Checks that a checkpoint of `steps_done` is there: its manifest, and the sizes of its files.
// Returns an error for which MeansDamage holds if it is not.
absl::Status CheckCheckpoint(FileSystem& files, const std::string& directory, int64_t steps_done);
// Also reads all files and compares their hashes. Returns Cancelled once `stopped` returns true.
absl::Status VerifyCheckpoint(FileSystem& files, const std::string& directory, int64_t steps_done,
                              const std::function<bool()>& stopped);
// Whether an error of reading a checkpoint blames its files. If not, the same files may be read
// later.
bool MeansDamage(const absl::Status& status);

// Removes everything in a job's folder except its stream and the checkpoint `keep`, given as by
// CheckpointWithinJob, the newest one of fewer steps, which is used if `keep` turns out to be
// damaged, and those of `best_steps` steps, of a validation whose model is kept (0: none). If
// `keep` is empty, removes the folder itself, unless there is a stream. If `keep` has no manifest
// there, removes nothing: the rest may be all that is left of the job. Blocks; files that cannot be
// removed stay.
void RemoveCheckpoints(FileSystem& files, const std::string& job_folder, const std::string& keep,
                       int64_t best_steps = 0);

// Removes complete checkpoints of fewer steps than `newest`, except `spare` and those of
// `best_steps` steps. For a running attempt, which may be writing others. Blocks.
void RemoveOlderCheckpoints(FileSystem& files, const std::string& job_folder,
                            const StoredCheckpoint& newest, const std::string& spare,
                            int64_t best_steps = 0);

}  // namespace espalier
