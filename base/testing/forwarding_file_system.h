// File system that forwards every call to another one. Tests override parts of it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"

namespace espalier {

class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(std::unique_ptr<FileSystem> base) : base_(std::move(base)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return base_->Create(path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return base_->Open(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return base_->Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return base_->Remove(path); }
  absl::Status CreateDirectories(const std::string& path) override {
    return base_->CreateDirectories(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return base_->SyncDirectory(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return base_->List(path);
  }

 protected:
  FileSystem& base() { return *base_; }

 private:
  const std::unique_ptr<FileSystem> base_;
};

}  // namespace espalier
