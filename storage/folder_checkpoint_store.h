// The checkpoint store in a folder of this host, which several hosts may share.
#pragma once

#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "storage/checkpoint_store.h"

namespace espalier {

// Folders are made as needed. Follows no links: a name that leads out of the folder through one is
// PermissionDenied.
class FolderCheckpointStore : public CheckpointStore {
 public:
  // `root` need not exist. `files` must outlive the store.
  FolderCheckpointStore(FileSystem& files, std::string root)
      : files_(files), root_(std::move(root)) {}

  const std::string& root() const { return root_; }

  absl::StatusOr<std::unique_ptr<Upload>> Put(const std::string& name) override;
  absl::Status PutIfAbsent(const std::string& name, const std::string& content) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& name) override;
  absl::StatusOr<std::vector<Object>> List(const std::string& folder) override;
  absl::Status DeleteExcept(const std::string& name, const std::vector<std::string>& keep) override;

  // Returns the name of a path in this folder.
  std::string NameOf(const std::string& path) const;

 private:
  // Returns the path of the name, once that is checked.
  absl::StatusOr<std::string> PathOf(const std::string& name) const;
  absl::StatusOr<std::string> MakeFolderOf(const std::string& name);
  // `reason`: of an error.
  absl::StatusOr<std::vector<Object>> ListOnce(const std::string& path,
                                               std::error_code* reason) const;

  FileSystem& files_;
  const std::string root_;
};

}  // namespace espalier
