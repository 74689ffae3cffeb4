// A checkpoint of a recording for a replay that reads it: where the checkpoint store has it, or, if
// only a spool does, a copy.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/recordings/recording_store.h"
#include "server/recordings/spool.h"
#include "storage/checkpoint_store.h"

namespace espalier {

struct FetchTools {
  CheckpointStore* store = nullptr;
  Spool* spool = nullptr;                // null: there is none
  RecordingStore* recordings = nullptr;  // null: nothing is spooled
};

// Removes the copy, if it has one, when it is destroyed.
class FetchedCheckpoint {
 public:
  // `directory` is that of RecordedCheckpoint. A copy is made in a folder of the job and the
  // reader, such as "REPLAY/segment-3", which may have one at a time. Blocks. NotFound says where
  // the checkpoint should be; Cancelled once `stopped` returns true; other errors are those of
  // CopyCheckpoint.
  static absl::StatusOr<FetchedCheckpoint> Open(const FetchTools& tools, const std::string& job_id,
                                                const std::string& directory,
                                                const std::string& reader,
                                                const std::function<bool()>& stopped);
  FetchedCheckpoint(FetchedCheckpoint&& other) noexcept;
  FetchedCheckpoint& operator=(FetchedCheckpoint&& other) noexcept;
  ~FetchedCheckpoint();

  // In the checkpoint store, with the name of the job.
  const std::string& folder() const { return folder_; }
  // Whether it is a copy, which was compared with the manifest.
  bool is_copy() const { return store_ != nullptr; }

  // Removes copies that readers whose names begin with `reader` + "/" have left over.
  static absl::Status RemoveLeft(CheckpointStore& store, const std::string& job_id,
                                 const std::string& reader);

 private:
  explicit FetchedCheckpoint(std::string folder) : folder_(std::move(folder)) {}
  // Makes a copy for a reader; errors are those of CopyCheckpoint. Copies in the spool that are
  // damaged or lost do not count any more.
  static absl::StatusOr<FetchedCheckpoint> FetchCopy(const FetchTools& tools,
                                                     const std::string& job_id,
                                                     const std::string& directory,
                                                     const std::string& reader,
                                                     const std::function<bool()>& stopped);
  friend absl::Status RestoreCheckpoint(const FetchTools& tools, const std::string& job_id,
                                        const std::string& directory, const std::string& reader,
                                        const std::function<bool()>& stopped);
  void Remove();

  CheckpointStore* store_ = nullptr;  // null: no copy
  std::string folder_, copies_;       // copies_: the reader's folder
};

// Puts files of the copy of a checkpoint in place of those that are damaged or lost, once the whole
// copy was fetched beside it for this reader, and compared with its manifest. Blocks. NotFound if
// nothing is known of a copy in the spool that is used. Other errors say what is wrong with the
// copy, as in "its copy in s3://bucket is damaged, too: ...": DataLoss if it is damaged or lost,
// otherwise as of CopyCheckpoint. The checkpoint is then as damaged as before, or less.
absl::Status RestoreCheckpoint(const FetchTools& tools, const std::string& job_id,
                               const std::string& directory, const std::string& reader,
                               const std::function<bool()>& stopped);

}  // namespace espalier
