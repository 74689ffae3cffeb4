// Artifacts on disk: datasets, ONNX files and models, each a folder of files.
//
// An artifact is written to a temporary folder, every file is synced, the folder is renamed into
// place, and only then is the store's row updated: a crash at any point leaves the old or the new
// artifact. A replaced or deleted folder is marked, and removed once nobody holds it, or at the
// next start. A folder with neither a row nor a mark is never removed, as the row may have been
// lost: at the start it is moved aside, and moved back if a row names it again.
//
// An artifact may have several versions, which jobs make: "name" is the newest, "name@<n>" is
// version n. The row of the first one is "name", those of the others are "name@<n>".
//
// <root>/data/<row>@<n>/<file...>   <root>/incoming/<n>/<file...>
// <root>/deleted/<row>@<n>, marks   <root>/orphaned/<row>@<n>/<file...>
//
// With ArtifactObjects the files are in an object store before the row is updated, and data/ is a
// cache: what is missing there is fetched when it is first asked for.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "espalier/v1/models.pb.h"
#include "server/artifacts/artifact_names.h"
#include "server/artifacts/artifact_objects.h"
#include "server/store/job_store.h"

namespace espalier {

struct ArtifactLimits {
  int64_t max_files = 10'000;
  int64_t max_bytes = int64_t{1} << 40;  // per artifact
  int64_t max_chunk_bytes = 1 << 20;
};

class ArtifactUpload;

// An artifact to be made.
struct NewArtifact {
  std::string name;  // reference
  v1::Artifact::Kind kind = v1::Artifact::KIND_UNSPECIFIED;
  std::map<std::string, std::string> metadata;
  // If the name has versions already, this one's owner must be theirs, or nobody: then it is
  // theirs.
  std::string owner;
};

// The error for a reference that names no artifact.
absl::Status ArtifactNotFound(const std::string& reference);

// Something that will read an artifact again, and would find it changed or gone.
struct ArtifactUse {
  std::string artifact;  // reference
  std::string user;      // "job job-3"
  std::string remedy;    // how to end that use
  // Only replays of a recorded run, "lm@3 (job-3)", read it: who takes it away may insist.
  bool replays = false;
  std::string owner = "";  // of the run
};

// How an artifact is deleted, or replaced by another content.
struct ArtifactRemoval {
  bool force = false;  // even if replays of recorded runs need it
  // Whose runs an error may name; null: all.
  std::function<bool(const std::string& owner)> may_see;
};

// What to do with an artifact of the same name.
enum class IfExists {
  kRefuse,
  kReplace,     // its newest version, or the named one
  kAddVersion,  // but replace the version of the same job (metadata "job")
};

// A reference to an artifact's files. They stay unchanged while a copy of this lives, even if the
// artifact is replaced or deleted; may outlive the store. Thread-safe.
class ArtifactFolder {
 public:
  const std::string& path() const { return files_->path; }  // absolute

 private:
  friend class ArtifactStore;
  struct Files {
    Files(std::string path, std::string mark) : path(std::move(path)), mark(std::move(mark)) {}
    ~Files();
    const std::string path, mark;
    std::atomic<bool> deleted = false;  // removed with the last reference
    absl::Mutex mutex;
    bool there ABSL_GUARDED_BY(mutex) = true;  // in `path`; or only in the store of objects
    bool fetching ABSL_GUARDED_BY(mutex) = false;
    int64_t fetches ABSL_GUARDED_BY(mutex) = 0;  // that have ended
    absl::Status last_fetch ABSL_GUARDED_BY(mutex);
  };
  explicit ArtifactFolder(std::shared_ptr<Files> files) : files_(std::move(files)) {}

  std::shared_ptr<Files> files_;
};

// Thread-safe.
class ArtifactStore {
 public:
  // All pointers must outlive the store. `objects`, if not null, has not been started; artifacts
  // that are only in the folder are put there first. FailedPrecondition, with the remedy, if there
  // are artifacts in a store of objects and `objects` is null, or some are nowhere.
  static absl::StatusOr<std::unique_ptr<ArtifactStore>> Open(const std::string& root,
                                                             FileSystem* files, JobStore* store,
                                                             const Clock* clock,
                                                             ArtifactLimits limits = {},
                                                             ArtifactObjects* objects = nullptr);

  // Artifacts in the lists that these functions return are neither deleted nor replaced. Call
  // before any of those.
  void AddUser(std::function<std::vector<ArtifactUse>()> uses) {
    users_.push_back(std::move(uses));
  }

  // Names of artifacts in the following calls are references (ArtifactReference). NotFound names
  // the artifact and says how to upload it. A returned artifact has its version in its name if it
  // has several.
  absl::StatusOr<v1::Artifact> Find(const std::string& name) const;
  // The next three fetch the files from the store of objects if they are not here, once for all
  // callers; errors are then those of ArtifactObjects::Download, too.
  //
  // Returns the absolute path of the artifact's folder. Valid until it is replaced or deleted.
  absl::StatusOr<std::string> Folder(const std::string& name) const;
  // Returns a reference that keeps the artifact's current files.
  absl::StatusOr<ArtifactFolder> Pin(const std::string& name) const;
  // Returns the absolute path of the artifact's only file; InvalidArgument if it has several.
  absl::StatusOr<std::string> SingleFile(const std::string& name) const;
  std::vector<v1::Artifact> List() const;
  // Calls `see` with each, in the order of List, and the name that List shows; holds the lock.
  void ForEach(
      const std::function<void(const v1::Artifact& artifact, const std::string& name)>& see) const;
  // Owner of the versions of a name; nothing if there are none.
  std::optional<std::string> OwnerOf(const std::string& name) const;
  // Returns a reference that later versions do not change, for records: of a model "name@<n>".
  absl::StatusOr<std::string> Pinned(const std::string& name) const;

  // Begins an upload. Returns AlreadyExists if the artifact exists and not `replace`, and Commit if
  // the name is another owner's. Destroying the upload before Commit drops it.
  absl::StatusOr<std::unique_ptr<ArtifactUpload>> Begin(const NewArtifact& what, bool replace,
                                                        const ArtifactRemoval& how = {});
  // For an upload that may repeat an earlier one: stores nothing; ends with CheckMatches.
  std::unique_ptr<ArtifactUpload> BeginRetry(const std::string& name);

  // Records the reply under the key in the transaction of the deletion. FailedPrecondition if a
  // user needs the artifact, or if it has several versions and none is named.
  absl::Status Delete(const std::string& name, const IdempotencyRecord* idempotency_record,
                      const ArtifactRemoval& how = {});

  // Returns Unavailable if the folder of the artifacts is gone.
  absl::Status CheckPresent() const;

  // Creates a folder for files to be registered with RegisterStaged.
  absl::StatusOr<std::string> MakeStagingFolder();
  // Makes the idempotency record from an artifact; both are written in one transaction.
  using IdempotencyRecordFactory = std::function<IdempotencyRecord(const v1::Artifact&)>;
  // Registers all files of a staging folder as an artifact, durably; the result's name has the
  // version if it is not the first. Returns AlreadyExists if the name is another owner's, or the
  // artifact exists and is to be refused; FailedPrecondition if it is to be replaced and a user
  // needs it, or replays do, not `how.force` and the content is another one. `go_on` is called
  // after the files have been hashed, and while they are put into a store of objects, which takes a
  // while: if it returns an error, that is returned and nothing has changed.
  absl::StatusOr<v1::Artifact> RegisterStaged(
      const std::string& staging_folder, const NewArtifact& what,
      IfExists if_exists = IfExists::kReplace,
      const IdempotencyRecordFactory& make_idempotency_record = nullptr,
      const std::function<absl::Status()>& go_on = nullptr, const ArtifactRemoval& how = {});

 private:
  friend class ArtifactUpload;
  static constexpr char kIncoming[] = "incoming", kData[] = "data";  // in the root

  struct Entry {
    v1::Artifact artifact;
    ArtifactFolder folder;
  };

  ArtifactStore(std::string root, FileSystem* files, JobStore* store, const Clock* clock,
                ArtifactLimits limits, ArtifactObjects* objects)
      : root_(std::move(root)),
        files_(files),
        store_(store),
        clock_(clock),
        limits_(limits),
        objects_(objects) {}
  absl::Status Load();
  // Moves a folder between two subfolders of the root.
  absl::Status Move(const std::string& folder, const char* from, const char* to);
  // Keeps a folder's number from being reused.
  void ReserveNumber(const std::string& folder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Call once no row names the folder.
  void MarkDeleted(const ArtifactFolder& folder);
  ArtifactFolder FolderAt(const std::string& name) const;   // under data/
  static std::string NameOf(const ArtifactFolder& folder);  // in data/
  std::optional<std::string> OwnerOfRows(const std::string& name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rows of an artifact's versions.
  std::map<int64_t, std::string> Versions(const std::string& name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the row; empty: there is none.
  std::string RowOf(const ArtifactReference& reference) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<const Entry*> Locate(const std::string& reference) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As callers see it.
  std::string ShownName(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Artifact Shown(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the row of a new version: that of the same job, if any.
  absl::StatusOr<std::string> RowOfVersion(const v1::Artifact& artifact)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<ArtifactUse> Uses() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckUnused(const std::string& row, const std::vector<ArtifactUse>& uses) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `remedy`: what else the caller may do; an error ends with it.
  absl::Status CheckNotReplayed(const std::string& name, const std::string& row,
                                const std::vector<ArtifactUse>& uses, const ArtifactRemoval& how,
                                const std::string& remedy) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a complete folder the artifact's, durably: stores its files and updates the row.
  absl::StatusOr<v1::Artifact> Install(const std::string& staging, v1::Artifact artifact,
                                       IfExists if_exists, const ArtifactRemoval& how,
                                       const IdempotencyRecordFactory& make_idempotency_record,
                                       const std::function<absl::Status()>& go_on);
  // Returns the artifact's row, empty for a new version, and completes its owner; an error if it
  // may not be installed.
  absl::StatusOr<std::string> CheckInstall(v1::Artifact* artifact, IfExists if_exists,
                                           const ArtifactRemoval& how,
                                           const std::vector<ArtifactUse>& uses) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the folder into place and updates the row. `objects_folder`: of the stored files; empty
  // without a store of objects.
  absl::StatusOr<v1::Artifact> InstallStored(const std::string& staging, v1::Artifact artifact,
                                             IfExists if_exists, const ArtifactRemoval& how,
                                             const std::string& objects_folder,
                                             const std::vector<ArtifactUse>& uses,
                                             const IdempotencyRecord* idempotency_record);
  // With a store of objects (artifact_store_objects.cc).
  //
  // Returns FailedPrecondition if rows are in one, though this has none.
  absl::Status CheckObjects(const std::vector<ArtifactRecord>& records) const;
  // Starts it, and puts into it what is only in the folder. `there`: the folders in data.
  absl::Status StartObjects(const std::set<std::string>& there)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MoveToObjects(Entry* entry);
  // Makes the files be in the folder.
  absl::Status Fetch(const v1::Artifact& artifact, const ArtifactFolder& folder) const;
  absl::Status FetchNow(const v1::Artifact& artifact, const ArtifactFolder::Files& to) const;

  const std::string root_;
  FileSystem* const files_;
  JobStore* const store_;
  const Clock* const clock_;
  const ArtifactLimits limits_;
  ArtifactObjects* const objects_;  // null: the folder has everything
  std::vector<std::function<std::vector<ArtifactUse>()>> users_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by row
  int64_t next_folder_ ABSL_GUARDED_BY(mutex_) = 1;
};

// One upload. Not thread-safe. After an error only destruction is allowed.
class ArtifactUpload {
 public:
  ~ArtifactUpload();

  absl::Status StartFile(const std::string& name);
  absl::Status Append(const std::string& chunk);
  // Checks the last file's hash. Returns DataLoss with both hashes if they differ.
  absl::Status CheckSha256(const std::string& hex);
  // Registers the artifact; durable once this returns. `go_on` as for RegisterStaged.
  using IdempotencyRecordFactory = ArtifactStore::IdempotencyRecordFactory;
  absl::StatusOr<v1::Artifact> Commit(
      const IdempotencyRecordFactory& make_idempotency_record = nullptr,
      const std::function<absl::Status()>& go_on = nullptr);
  // Instead of Commit. Returns InvalidArgument unless the files are those of `artifact`.
  absl::Status CheckMatches(const v1::Artifact& artifact);

 private:
  friend class ArtifactStore;
  struct Hash;
  ArtifactUpload();
  absl::Status FinishFile();

  ArtifactStore* store_ = nullptr;
  v1::Artifact artifact_;
  int64_t bytes_ = 0;
  IfExists if_exists_ = IfExists::kRefuse;
  ArtifactRemoval how_;                 // what it replaces
  std::string staging_;                 // empty: nothing is stored
  bool open_ = false;                   // a file is started but not finished
  std::unique_ptr<WritableFile> file_;  // null if nothing is stored
  std::string file_name_;
  std::string last_sum_;
  std::unique_ptr<Hash> hash_;
  std::map<std::string, std::string> sums_;  // file -> sha256
};

}  // namespace espalier
