// What one attempt of a job reads and writes besides its dataset.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "storage/checkpoint_store.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/object_reader.h"
#include "storage/store_file_system.h"
#include "worker/storage/cancellation.h"
#include "worker/storage/copied_shards_store.h"

namespace espalier {

// Thread-safe.
class JobStorage {
 public:
  // `cancellation`, if given, ends waiting calls of the stores.
  JobStorage(std::shared_ptr<CheckpointStore> checkpoints, std::shared_ptr<ObjectReader> inputs,
             std::shared_ptr<Cancellation> cancellation = nullptr)
      : checkpoints_(std::move(checkpoints)),
        inputs_(std::move(inputs)),
        cancellation_(std::move(cancellation)),
        files_(*inputs_) {}
  // The same where shards have copies.
  JobStorage(std::shared_ptr<CopiedShardsStore> checkpoints, std::shared_ptr<ObjectReader> inputs,
             std::shared_ptr<Cancellation> cancellation)
      : checkpoints_(checkpoints),
        copies_(std::move(checkpoints)),
        inputs_(std::move(inputs)),
        cancellation_(std::move(cancellation)),
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

  // The attempt is over: calls that wait for the coordinator or S3 end soon.
  void Cancel() {
    if (cancellation_ != nullptr) cancellation_->Cancel();
    if (copies_ != nullptr) copies_->Cancel();
  }

 private:
  const std::shared_ptr<CheckpointStore> checkpoints_;
  const std::shared_ptr<CopiedShardsStore> copies_;
  const std::shared_ptr<ObjectReader> inputs_;
  const std::shared_ptr<Cancellation> cancellation_;
  StoreFileSystem files_;
};

}  // namespace espalier
