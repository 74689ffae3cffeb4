// What a coordinator keeps: the data folder, the job store, artifacts, checkpoints, recordings and
// their copies, each in the place that its options name.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "server/artifacts/artifact_objects.h"
#include "server/artifacts/artifact_store.h"
#include "server/coordinator_options.h"
#include "server/jobs/check_joining_worker.h"
#include "server/recordings/recording_store.h"
#include "server/recordings/spool.h"
#include "server/spool_store.h"
#include "server/storage/uploads.h"
#include "server/store/job_store.h"
#include "storage/checkpoint_store.h"
#include "storage/dataset_roots.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {

// CoordinatorOptions::checkpoint_store: through the coordinator.
inline constexpr char kStreamedStore[] = "coordinator";

// In order of construction: later members use earlier ones.
struct CoordinatorStores {
  std::unique_ptr<FileSystem> own_files;
  FileSystem* files = nullptr;
  std::string root;      // the data folder: absolute, without "." and ".."
  DataDir data_dir;      // by which workers find out whether they share it
  std::string identity;  // of the jobs
  std::unique_ptr<DatasetRoots> dataset_roots;
  std::unique_ptr<JobStore> store;
  std::unique_ptr<CheckpointStore> artifact_store;  // null: artifacts are in the data folder
  std::unique_ptr<ArtifactObjects> artifact_objects;
  std::unique_ptr<ArtifactStore> artifacts;
  std::optional<FolderCheckpointStore> data_folder,
      job_folder;                                 // job_folder: kCheckpointsFolder in it
  std::unique_ptr<Uploads> uploads;               // of workers, to data_folder
  std::unique_ptr<CheckpointStore> object_store;  // null: checkpoints are in job_folder
  CheckpointStore* checkpoints = nullptr;
  // Ends calls of the spool.
  const std::shared_ptr<std::atomic<bool>> spool_cancelled =
      std::make_shared<std::atomic<bool>>(false);
  OpenedSpool opened_spool;
  std::unique_ptr<RecordingStore> recordings;
  std::unique_ptr<Spool> spool;  // null: there is none

  // Once. Checks that each place can be used and is that of these jobs; errors name the option and
  // the remedy. `clock` and `spool_observer` must outlive this.
  absl::Status Open(const CoordinatorOptions& options, const Clock* clock,
                    SpoolObserver* spool_observer);
  // Of the disk where checkpoints are; null if they are on none.
  std::function<DiskRoom()> Disk() const;

 private:
  absl::Status OpenDataFolder(const CoordinatorOptions& options);
  absl::Status OpenJobStore(const CoordinatorOptions& options);
  absl::Status OpenArtifacts(const CoordinatorOptions& options, const Clock* clock);
  absl::Status OpenCheckpoints(const CoordinatorOptions& options, const Clock* clock);
  absl::Status OpenRecordings(const CoordinatorOptions& options, SpoolObserver* spool_observer);
};

}  // namespace espalier
