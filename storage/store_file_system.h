// A store's objects as a file system, for what reads models and other folders by path.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "storage/object_reader.h"

namespace espalier {

// Paths are names of objects. PermissionDenied for every change. Thread-safe.
class StoreFileSystem : public FileSystem {
 public:
  // `store` must outlive it.
  explicit StoreFileSystem(ObjectReader& store) : store_(store) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;

 private:
  ObjectReader& store_;
};

}  // namespace espalier
