// What one attempt of a job reads and writes besides its dataset.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "storage/checkpoint_store.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/object_reader.h"
#include "storage/store_file_system.h"
#include "worker/storage/copied_shards_store.h"

namespace espalier {

// Thread-safe.
class JobStorage {
 public:
  // `cancelled`, if given, ends waiting calls of the stores once it is true.
  JobStorage(std::shared_ptr<CheckpointStore> checkpoints, std::shared_ptr<ObjectReader> inputs,
             std::shared_ptr<std::atomic<bool>> cancelled = nullptr)
      : checkpoints_(std::move(checkpoints)),
        inputs_(std::move(inputs)),
        cancelled_(std::move(cancelled)),
        files_(*inputs_) {}
  // The same where shards have copies.
  JobStorage(std::shared_ptr<CopiedShardsStore> checkpoints, std::shared_ptr<ObjectReader> inputs,
             std::shared_ptr<std::atomic<bool>> cancelled)
      : checkpoints_(checkpoints),
        copies_(std::move(checkpoints)),
        inputs_(std::move(inputs)),
        cancelled_(std::move(cancelled)),
        files_(*inputs_) {}

  // In a folder of this host. `files` must outlive it.
  static std::shared_ptr<JobStorage> InFolder(FileSystem& files, const std::string& checkpoints,
                                              const std::string& inputs) {
    return std::make_shared<JobStorage>(std::make_shared<FolderCheckpointStore>(files, checkpoints),
                                        std::make_shared<FolderCheckpointStore>(files, inputs));
  }

  CheckpointStore& checkpoints() { return *checkpoints_; }
  CopiedShardsStore* copies() { return copies_.get(); }  // checkpoints(), or null
  // The coordinator's data folder: initial values, pushed examples, models.
  ObjectReader& inputs() { return *inputs_; }
  FileSystem& files() { return files_; }  // inputs()

  // The attempt is over: calls that wait for the coordinator end soon.
  void Cancel() {
    if (cancelled_ != nullptr) *cancelled_ = true;
    if (copies_ != nullptr) copies_->Cancel();
  }

 private:
  const std::shared_ptr<CheckpointStore> checkpoints_;
  const std::shared_ptr<CopiedShardsStore> copies_;
  const std::shared_ptr<ObjectReader> inputs_;
  const std::shared_ptr<std::atomic<bool>> cancelled_;
  StoreFileSystem files_;
};

}  // namespace espalier
