// Copies checkpoints from one store to another, perhaps compressed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/checkpoint_store.h"
#include "storage/manifest.h"

namespace espalier {

struct CopyOptions {
  // Compresses each file of which a part from its middle becomes smaller by a twentieth at least,
  // in the way in which it becomes smallest (copy_encoding.h).
  bool compress = false;
  // Asked several times a second; if it returns true, the copy ends with Cancelled. May be null.
  std::function<bool()> stopped;
};

struct CopiedCheckpoint {
  int64_t steps_done = 0;
  int64_t bytes = 0;         // of its files, before they were compressed
  int64_t copied_bytes = 0;  // that were written
};

// The SHA-256 of files that were copied, by name in the target. A copy that failed and is tried
// again, and checkpoints that share files, do not copy these again.
using CopiedFiles = std::map<std::string, std::string>;

// Copies the checkpoint in `from_folder`, its manifest last, in place of another one in
// `to_folder`. Files may be compressed in `from`; they are not in `to` unless the options say so.
// Each file is compared with the manifest's hash before it is there: DataLoss names one that is
// damaged. Other errors are those of the stores. `copied` may be null.
absl::StatusOr<CopiedCheckpoint> CopyCheckpoint(ObjectReader& from, const std::string& from_folder,
                                                CheckpointStore& to, const std::string& to_folder,
                                                const CopyOptions& options, CopiedFiles* copied);

// Puts files of the checkpoint in `from_folder` in place of those of the checkpoint in `to_folder`
// that are damaged or missing; sound ones stay as they are, and those that share them. Nothing is
// removed: after an error each file is the former one or a sound one. Errors as above.
absl::Status RepairCheckpoint(ObjectReader& from, const std::string& from_folder,
                              CheckpointStore& to, const std::string& to_folder,
                              const CopyOptions& options);

}  // namespace espalier
