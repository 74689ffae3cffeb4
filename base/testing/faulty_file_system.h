// File system over another one that can fill up or block. For tests.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/testing/forwarding_file_system.h"

namespace espalier {

class FaultyFileSystem : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;

  // Bytes left. The write that exceeds them is truncated and fails.
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }

  enum class Call { kCreate, kOpen, kRename };
  // Blocks calls of this kind whose path contains `name`, until Release.
  void Hold(const std::string& name, Call call = Call::kCreate) {
    absl::MutexLock lock(&mutex_);
    held_name_ = name;
    held_call_ = call;
    held_ = 0;
  }
  void Release() { Hold(""); }
  // Number of calls blocked since Hold.
  int held() const {
    absl::MutexLock lock(&mutex_);
    return held_;
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    Pass(Call::kCreate, path);
    absl::StatusOr<std::unique_ptr<WritableFile>> file = base().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(this, *std::move(file), path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    Pass(Call::kOpen, path);
    return base().Open(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    Pass(Call::kRename, to);
    return base().Rename(from, to);
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

  void Pass(Call call, const std::string& path) {
    absl::MutexLock lock(&mutex_);
    const auto let_go = [&] {
      mutex_.AssertReaderHeld();
      return held_name_.empty() || call != held_call_ || path.find(held_name_) == std::string::npos;
    };
    if (!let_go()) ++held_;
    mutex_.Await(absl::Condition(&let_go));
  }

  std::atomic<int64_t> free_bytes_{INT64_MAX};
  mutable absl::Mutex mutex_;
  std::string held_name_ ABSL_GUARDED_BY(mutex_);
  Call held_call_ ABSL_GUARDED_BY(mutex_) = Call::kCreate;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace espalier
