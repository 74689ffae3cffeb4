// Artifacts in an object store, of which the coordinator's folder is then a cache.
//
// An artifact's files are the objects artifacts/<folder>/<file...>. A folder's name is random, so
// none is used twice, and what lies in a cache under that name is never another artifact's. Which
// folders may be removed is noted in the job store before anything is written to them, and before
// the row that names them goes: what a crash leaves behind is removed at the next start, and once
// more at the one after it, as a leader that was stopped may still have had objects on their way.
// Objects with neither a row nor a note are never removed, as their row may come back from a
// backup.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "espalier/v1/models.pb.h"
#include "server/store/job_store.h"
#include "storage/checkpoint_store.h"

namespace espalier {

// The job store's blob with the URL of the store that has the artifacts.
inline constexpr char kArtifactStoreBlob[] = "artifact-objects/store";

// Thread-safe.
class ArtifactObjects {
 public:
  // `url` names the store in messages. All pointers must outlive this; `cancelled` becomes true in
  // Stop, and ends the store's calls.
  ArtifactObjects(CheckpointStore* objects, std::string url, FileSystem* files, JobStore* store,
                  std::shared_ptr<std::atomic<bool>> cancelled)
      : objects_(*objects),
        url_(std::move(url)),
        files_(*files),
        store_(*store),
        cancelled_(std::move(cancelled)) {}
  ~ArtifactObjects() { Stop(); }

  // Whether a folder of this name is in a store of objects, and not only on a coordinator's disk.
  static bool IsObjectFolder(const std::string& folder);
  const std::string& url() const { return url_; }

  // Reads the notes, removes from now on what none of `rows`, the folders of all rows, names.
  // Call first.
  absl::Status Start(const std::set<std::string>& rows);
  // Downloads end with Cancelled from now on, so that nobody waits long for the end.
  void EndDownloads() { ended_ = true; }
  // Ends all calls within a second or two. What is left to be removed is removed after the next
  // start. Idempotent.
  void Stop();

  // Writes the artifact's files, which lie in `from`, and returns the new folder. It is removed
  // unless Keep follows, also after a crash. `go_on`, which may be null, is called at times: its
  // error is returned. DataLoss if the files are not those of artifact.sha256.
  absl::StatusOr<std::string> Upload(const v1::Artifact& artifact, const std::string& from,
                                     const std::function<absl::Status()>& go_on);
  // Once a row names the folder.
  void Keep(const std::string& folder);
  // Before no row names the folder any more. Remove, or Keep if the row stays, must follow.
  absl::Status Note(const std::string& folder);
  // Once no row names a folder of Note or Upload: removes it in the background.
  void Remove(const std::string& folder);

  // Writes the artifact's files to `to`, a new folder, durably. Errors name the artifact: DataLoss
  // if files are missing or damaged, Unavailable if the store does not answer, ResourceExhausted if
  // there is no room. After an error, `to` may have some of the files.
  absl::Status Download(const v1::Artifact& artifact, const std::string& folder,
                        const std::string& to);

 private:
  std::string Where(const std::string& folder) const;
  absl::StatusOr<std::string> UploadFile(const std::string& from, const std::string& object,
                                         const std::function<absl::Status()>& go_on);
  absl::StatusOr<std::string> DownloadFile(const std::string& object, const std::string& to);
  absl::Status WriteNotes(std::set<std::string> notes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveLoop();
  // Changes the notes: takes one away, and adds one unless it is empty. A failure is only logged.
  void ReplaceNote(const std::string& old, const std::string& by);

  CheckpointStore& objects_;
  const std::string url_;
  FileSystem& files_;
  JobStore& store_;
  const std::shared_ptr<std::atomic<bool>> cancelled_;
  std::atomic<bool> ended_ = false;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> notes_ ABSL_GUARDED_BY(mutex_);  // as in the job store
  struct Removal {
    std::string folder;
    std::string note;        // that goes once it is done
    std::string note_after;  // that takes its place; empty: none
  };
  std::vector<Removal> to_remove_ ABSL_GUARDED_BY(mutex_);
  std::thread removal_;
};

}  // namespace espalier
