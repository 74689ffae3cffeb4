// File system that blocks reads of one folder's files until released. For tests.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/testing/forwarding_file_system.h"

namespace espalier {

// Thread-safe. Must outlive the files that it opened.
class GatedFileSystem : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;

  // Blocks reads of files below `folder` until Release, after `reads` more of them.
  void Hold(const std::string& folder, int reads) {
    absl::MutexLock lock(&mutex_);
    folder_ = folder;
    passing_ = reads;
    held_ = true;
    passed_ = 0;
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    held_ = false;
  }
  // Waits for a blocked read. Returns false after 60 s.
  bool AwaitWaitingRead() const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_waiting_), absl::Seconds(60));
  }
  // Reads below that folder since Hold.
  int reads() const {
    absl::MutexLock lock(&mutex_);
    return passed_;
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = base().Open(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(this, *std::move(file), path);
  }

 private:
  class File : public ReadableFile {
   public:
    File(GatedFileSystem* system, std::unique_ptr<ReadableFile> file, std::string path)
        : system_(system), file_(std::move(file)), path_(std::move(path)) {}
    int64_t size() const override { return file_->size(); }
    absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
      system_->Pass(path_);
      return file_->Read(offset, bytes, out);
    }
    absl::Status CheckUnchanged() const override { return file_->CheckUnchanged(); }

   private:
    GatedFileSystem* const system_;
    const std::unique_ptr<ReadableFile> file_;
    const std::string path_;
  };

  void Pass(const std::string& path) {
    absl::MutexLock lock(&mutex_);
    if (folder_.empty() || !absl::StartsWith(path, folder_ + "/")) return;
    ++passed_;
    if (passing_-- > 0) return;
    is_waiting_ = true;
    const auto released = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !held_; };
    mutex_.Await(absl::Condition(&released));
    is_waiting_ = false;
  }

  mutable absl::Mutex mutex_;
  std::string folder_ ABSL_GUARDED_BY(mutex_);
  int passing_ ABSL_GUARDED_BY(mutex_) = 0;
  int passed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
