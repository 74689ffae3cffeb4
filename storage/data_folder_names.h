// Folders of the coordinator's data folder that workers know by name.
#pragma once

namespace espalier {

// Beneath it each job and session has a folder: for its checkpoints, unless they are in an object
// store, its initial values and pushed examples.
inline constexpr char kCheckpointsFolder[] = "checkpoints";
// Each version of an artifact has a folder here.
inline constexpr char kArtifactsFolder[] = "artifacts/data";

}  // namespace espalier
