#include "server/coordinator_stores.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/data_folder_mode.h"
#include "server/object_store.h"
#include "server/standby/shared_store.h"
#include "server/store/sqlite_store.h"
#include "storage/data_folder_names.h"

namespace espalier {
namespace {

// The job store's blob with the URL of the store that has the checkpoints.
constexpr char kCheckpointStoreBlob[] = "checkpoint-objects/store";

}  // namespace

absl::Status CoordinatorStores::Open(const CoordinatorOptions& options, const Clock* clock,
                                     SpoolObserver* spool_observer) {
  if (options.file_system == nullptr) own_files = NewPosixFileSystem();
  files = options.file_system != nullptr ? options.file_system : own_files.get();
  if (absl::Status s = OpenDataFolder(options); !s.ok()) return s;
  if (absl::Status s = OpenJobStore(options); !s.ok()) return s;
  if (absl::Status s = OpenArtifacts(options, clock); !s.ok()) return s;
  if (absl::Status s = OpenCheckpoints(options, clock); !s.ok()) return s;
  return OpenRecordings(options, spool_observer);
}

std::function<DiskRoom()> CoordinatorStores::Disk() const {
  if (object_store != nullptr) return nullptr;
  return [folder = root] {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(folder, error);
    if (error) return DiskRoom{};  // the folder is away; nothing is removed
    return DiskRoom{static_cast<int64_t>(space.available), static_cast<int64_t>(space.capacity)};
  };
}

absl::Status CoordinatorStores::OpenDataFolder(const CoordinatorOptions& options) {
  if (options.data_dir.empty()) return absl::InvalidArgumentError("data_dir: must be given");
  std::error_code error;
  root = std::filesystem::absolute(options.data_dir, error).string();
  if (absl::Status s = CreateDurableDirectories(*files, JoinPath(root, kCheckpointsFolder));
      !s.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("data_dir ", root, ": ", s.message(),
                     absl::IsUnimplemented(s) ? "" : "; it must be writable"));
  }
  CloseToOthers(root);
  // Normalized ("." and ".." removed), unless that names another folder (through a link).
  const std::filesystem::path normal = std::filesystem::path(root).lexically_normal();
  if (std::filesystem::equivalent(root, normal, error)) root = normal.string();
  absl::StatusOr<std::unique_ptr<DatasetRoots>> roots = DatasetRoots::Create(options.dataset_roots);
  if (!roots.ok()) return roots.status();
  dataset_roots = *std::move(roots);
  dataset_roots->Exclude(root);
  for (const std::string& path : options.private_files) dataset_roots->Exclude(path);
  absl::StatusOr<DataDir> identified = IdentifyDataDir(*files, root);
  if (!identified.ok()) return identified.status();
  data_dir = *std::move(identified);
  identity = data_dir.id;
  return absl::OkStatus();
}

absl::Status CoordinatorStores::OpenJobStore(const CoordinatorOptions& options) {
  if (options.open_store) {
    absl::StatusOr<std::unique_ptr<JobStore>> opened = options.open_store(*files, root, &identity);
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
    return absl::OkStatus();
  }
  if (absl::Status s = ClaimDataFolder(*files, root, JobStoreAddress()); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<SqliteStore>> opened =
      SqliteStore::Open(JoinPath(root, "espalier.db"));
  if (!opened.ok()) return opened.status();
  store = *std::move(opened);
  return absl::OkStatus();
}

absl::Status CoordinatorStores::OpenArtifacts(const CoordinatorOptions& options,
                                              const Clock* clock) {
  const std::string url(absl::StripSuffix(options.artifact_store, "/"));
  if (!url.empty()) {
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    absl::StatusOr<std::unique_ptr<CheckpointStore>> opened = OpenObjectStore(
        {"artifact-store", url, identity, kArtifactStoreBlob}, store.get(), cancelled);
    if (!opened.ok()) return opened.status();
    artifact_store = *std::move(opened);
    artifact_objects =
        std::make_unique<ArtifactObjects>(artifact_store.get(), url, files, store.get(), cancelled);
  }
  absl::StatusOr<std::unique_ptr<ArtifactStore>> kept = ArtifactStore::Open(
      JoinPath(root, "artifacts"), files, store.get(), clock, {}, artifact_objects.get());
  if (!kept.ok()) return kept.status();
  artifacts = *std::move(kept);
  return absl::OkStatus();
}

absl::Status CoordinatorStores::OpenCheckpoints(const CoordinatorOptions& options,
                                                const Clock* clock) {
  data_folder.emplace(*files, root);
  uploads = std::make_unique<Uploads>(&*data_folder, clock);
  job_folder.emplace(*files, JoinPath(root, kCheckpointsFolder));
  checkpoints = &*job_folder;
  const std::string& url = options.checkpoint_store;
  if (url == "auto" || url == kStreamedStore) return absl::OkStatus();
  if (!absl::StartsWith(url, "s3://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--checkpoint-store is '", url, "'; accepted: auto, coordinator, s3://BUCKET[/PREFIX]"));
  }
  // Where several coordinators have nothing else in common, one must not look elsewhere.
  const char* const record = options.artifact_store.empty() ? "" : kCheckpointStoreBlob;
  absl::StatusOr<std::unique_ptr<CheckpointStore>> opened =
      OpenObjectStore({"checkpoint-store", url, identity, record}, store.get());
  if (!opened.ok()) return opened.status();
  object_store = *std::move(opened);
  checkpoints = object_store.get();
  return absl::OkStatus();
}

absl::Status CoordinatorStores::OpenRecordings(const CoordinatorOptions& options,
                                               SpoolObserver* spool_observer) {
  if (!options.spool.empty()) {
    absl::StatusOr<OpenedSpool> opened = OpenSpool(
        {options.spool, identity, {root, options.checkpoint_store, options.artifact_store}}, *files,
        store.get(), spool_cancelled);
    if (!opened.ok()) return opened.status();
    opened_spool = *std::move(opened);
    dataset_roots->Exclude(opened_spool.url);
  }
  recordings = std::make_unique<RecordingStore>(checkpoints, store.get(), opened_spool.url);
  if (opened_spool.store == nullptr) return absl::OkStatus();
  spool = std::make_unique<Spool>(SpoolOptions{.url = opened_spool.url,
                                               .store = checkpoints,
                                               .spool = opened_spool.store.get(),
                                               .jobs = store.get(),
                                               .index = &recordings->copies(),
                                               .observer = spool_observer,
                                               .check = opened_spool.check});
  return absl::OkStatus();
}

}  // namespace espalier
