// Paths of a job's checkpoints: <checkpoint root>/<job>/attempt-<n>/<one folder per checkpoint>.
#pragma once

#include <string>

namespace espalier {

// Returns the last two components of a checkpoint's path, which are what a job's record stores:
// they stay valid if the data folder is moved or spelled differently. Accepts full paths too
// (records of earlier releases). Empty (no checkpoint) stays empty.
std::string CheckpointWithinJob(const std::string& directory);

// Removes everything in a job's folder except the checkpoint `keep`, given as by
// CheckpointWithinJob. If `keep` is empty, removes the folder itself. If `keep` has no manifest
// there, removes nothing: the rest may be all that is left of the job. Blocks; files that cannot be
// removed stay.
void RemoveCheckpoints(const std::string& job_folder, const std::string& keep);

}  // namespace espalier
