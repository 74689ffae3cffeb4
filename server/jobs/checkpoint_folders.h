// Where the checkpoints of a job lie: <checkpoint root>/<job>/attempt-<n>/<a folder for each>.
#pragma once

#include <string>

namespace espalier {

// The last two names of a checkpoint's folder, which is what a job's record keeps of it: they stay
// the same however the data folder is spelled and wherever it is moved. Records of earlier releases
// have the whole path; either is taken. Empty (no checkpoint) stays empty.
std::string CheckpointWithinJob(const std::string& directory);

// Removes what lies in a job's folder but the checkpoint `keep`, which is as CheckpointWithinJob
// gives it; empty: nothing is kept, the folder itself neither. If `keep` has no manifest there,
// nothing is removed: what is there may be all that is left of the job. Blocks for as long as the
// file system takes; what cannot be removed stays.
void RemoveCheckpoints(const std::string& job_folder, const std::string& keep);

}  // namespace espalier
