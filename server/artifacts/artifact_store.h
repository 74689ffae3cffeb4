// Artifacts on disk: datasets, ONNX files and models, each a folder of files.
//
// An artifact is written to a temporary folder, every file is synced, the folder is renamed into
// place, and only then does the store's row point at it: a crash at any point leaves the artifact
// as it was before or as it is after. A folder that was replaced or deleted is marked, and removed
// once nobody holds it, or when the daemon starts. One that no row points at and that bears no mark
// is never removed, for the row may be what is missing: at the start it is moved aside, and back if
// a row points at it again.
//
// <root>/data/<name>@<n>/<file...>   <root>/incoming/<n>/<file...>
// <root>/deleted/<name>@<n>, marks  <root>/orphaned/<name>@<n>/<file...>
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/models.pb.h"
#include "base/clock.h"
#include "server/store/job_store.h"
#include "base/file_system.h"

namespace espalier {

// [A-Za-z0-9._-]+, at most 128 characters, not starting with a dot.
absl::Status CheckArtifactName(const std::string& name);
// Relative, without "..", ".", empty parts, backslashes or control characters; at most 255
// characters.
absl::Status CheckArtifactFile(const std::string& name);

struct ArtifactLimits {
  int64_t max_files = 10'000;
  int64_t max_bytes = int64_t{1} << 40;  // of one artifact
  int64_t max_chunk_bytes = 1 << 20;
};

class ArtifactUpload;

// An artifact's files as they were when it was asked for. They stay while a copy of this lives,
// though the artifact may be replaced or deleted meanwhile; it may outlive the store. Thread-safe.
class ArtifactFolder {
 public:
  const std::string& path() const { return files_->path; }  // absolute

 private:
  friend class ArtifactStore;
  struct Files {
    Files(std::string path, std::string mark) : path(std::move(path)), mark(std::move(mark)) {}
    ~Files();
    const std::string path, mark;
    std::atomic<bool> deleted = false;  // removed with the last one who holds them
  };
  explicit ArtifactFolder(std::shared_ptr<Files> files) : files_(std::move(files)) {}

  std::shared_ptr<Files> files_;
};

// Thread-safe.
class ArtifactStore {
 public:
  // All pointers must outlive the store.
  static absl::StatusOr<std::unique_ptr<ArtifactStore>> Open(const std::string& root,
                                                             FileSystem* files, JobStore* store,
                                                             const Clock* clock,
                                                             ArtifactLimits limits = {});

  // NotFound names the artifact and how to upload it.
  absl::StatusOr<v1::Artifact> Find(const std::string& name) const;
  // Absolute path of the folder that holds the artifact's files. Valid until it is replaced or
  // deleted.
  absl::StatusOr<std::string> Folder(const std::string& name) const;
  // The same for as long as the caller likes.
  absl::StatusOr<ArtifactFolder> Pin(const std::string& name) const;
  // Absolute path of the only file of an artifact, or InvalidArgument if it has several.
  absl::StatusOr<std::string> SingleFile(const std::string& name) const;
  std::vector<v1::Artifact> List() const;

  // AlreadyExists unless `replace`. The upload is dropped if it is destroyed before Commit.
  absl::StatusOr<std::unique_ptr<ArtifactUpload>> Begin(
      const std::string& name, v1::Artifact::Kind kind, bool replace,
      std::map<std::string, std::string> metadata);
  // For an upload that may be a repetition: nothing of it is kept, CheckMatches ends it.
  std::unique_ptr<ArtifactUpload> BeginRetry(const std::string& name);

  // Remembers the reply under the key together with the deletion.
  absl::Status Delete(const std::string& name, const IdempotencyRecord* idempotency_record);

  // A folder of its own beneath the store, for files that are to be registered with RegisterStaged.
  absl::StatusOr<std::string> MakeStagingFolder();
  // Makes the idempotency record out of an artifact; both are written in one transaction.
  using IdempotencyRecordFactory = std::function<IdempotencyRecord(const v1::Artifact&)>;
  // Registers all files of a staging folder as an artifact, durably. AlreadyExists unless
  // `replace`. `go_on` is asked once they have been read, which takes a while: its error is the
  // answer, and nothing has changed.
  absl::StatusOr<v1::Artifact> RegisterStaged(const std::string& staging_folder, const std::string& name,
                                        v1::Artifact::Kind kind,
                                        std::map<std::string, std::string> metadata,
                                        bool replace = true,
                                        const IdempotencyRecordFactory& make_idempotency_record = nullptr,
                                        const std::function<absl::Status()>& go_on = nullptr);

 private:
  friend class ArtifactUpload;
  struct Entry {
    v1::Artifact artifact;
    ArtifactFolder folder;
  };

  ArtifactStore(std::string root, FileSystem* files, JobStore* store, const Clock* clock,
                ArtifactLimits limits)
      : root_(std::move(root)), files_(files), store_(store), clock_(clock), limits_(limits) {}
  absl::Status Load();
  // Between two places beneath the root.
  absl::Status Move(const std::string& folder, const char* from, const char* to);
  // A folder's number is not given again.
  void ReserveNumber(const std::string& folder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Once no row points at it any more.
  void MarkDeleted(const ArtifactFolder& folder);
  ArtifactFolder FolderAt(const std::string& name) const;  // beneath data/
  // Moves a complete, synced folder into place and points the row at it.
  absl::Status Install(const std::string& staging, v1::Artifact artifact, bool replace,
                       const IdempotencyRecord* idempotency_record, v1::Artifact* installed);

  const std::string root_;
  FileSystem* const files_;
  JobStore* const store_;
  const Clock* const clock_;
  const ArtifactLimits limits_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  int64_t next_folder_ ABSL_GUARDED_BY(mutex_) = 1;
};

// One artifact on its way in. Not thread-safe. After an error only destruction is allowed.
class ArtifactUpload {
 public:
  ~ArtifactUpload();

  absl::Status StartFile(const std::string& name);
  absl::Status Append(const std::string& chunk);
  // Checks what was received of the file last started. DataLoss with both sums if they differ.
  absl::Status CheckSha256(const std::string& hex);
  // Durable once this returns.
  using IdempotencyRecordFactory = ArtifactStore::IdempotencyRecordFactory;
  absl::StatusOr<v1::Artifact> Commit(const IdempotencyRecordFactory& make_idempotency_record = nullptr);
  // In the place of Commit. InvalidArgument unless the same files came as those of `artifact`.
  absl::Status CheckMatches(const v1::Artifact& artifact);

 private:
  friend class ArtifactStore;
  struct Hash;
  ArtifactUpload();
  absl::Status FinishFile();

  ArtifactStore* store_ = nullptr;
  v1::Artifact artifact_;
  int64_t bytes_ = 0;
  bool replace_ = false;
  std::string staging_;                 // empty: nothing is kept
  bool open_ = false;                   // a file was started and is not finished
  std::unique_ptr<WritableFile> file_;  // null where nothing is kept
  std::string file_name_;
  std::string last_sum_;
  std::unique_ptr<Hash> hash_;
  std::map<std::string, std::string> sums_;  // file -> sha256
};

}  // namespace espalier
