// A file system whose disk fills up, over a real one. For tests.
#pragma once

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/forwarding_file_system.h"

namespace espalier {

class FaultyFileSystem : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;

  // Bytes that can still be written; the write that passes it is cut off there and fails.
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    absl::StatusOr<std::unique_ptr<WritableFile>> file = base().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(this, *std::move(file), path);
  }

 private:
  class File : public WritableFile {
   public:
    File(FaultyFileSystem* system, std::unique_ptr<WritableFile> file, std::string path)
        : system_(system), file_(std::move(file)), path_(std::move(path)) {}

    absl::Status Append(const void* data, int64_t bytes) override {
      const int64_t before = system_->free_bytes_.fetch_sub(bytes);
      if (before >= bytes) return file_->Append(data, bytes);
      if (before > 0) file_->Append(data, before).IgnoreError();
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot write '", path_, "': No space left on device"));
    }
    absl::Status Sync() override { return file_->Sync(); }
    absl::Status Close() override { return file_->Close(); }

   private:
    FaultyFileSystem* system_;
    std::unique_ptr<WritableFile> file_;
    const std::string path_;
  };

  std::atomic<int64_t> free_bytes_{INT64_MAX};
};

}  // namespace espalier
