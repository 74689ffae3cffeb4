#include "worker/storage/remote_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/sha256.h"

namespace espalier {
namespace {

constexpr int64_t kReadAhead = 8 << 20;

absl::Status CheckRange(int64_t size, int64_t offset, int64_t bytes) {
  if (offset >= 0 && bytes >= 0 && offset <= size && bytes <= size - offset) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      absl::StrCat("bytes ", offset, " to ", offset + bytes, " of a file of ", size));
}

class RemoteFile : public ReadableFile {
 public:
  RemoteFile(int64_t size, RangeReader read) : size_(size), read_(std::move(read)) {}

  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
    if (absl::Status s = CheckRange(size_, offset, bytes); !s.ok()) return s;
    if (bytes >= kReadAhead) return read_(offset, bytes, out);
    absl::MutexLock lock(&mutex_);
    const int64_t end = begin_ + static_cast<int64_t>(ahead_.size());
    if (offset < begin_ || offset + bytes > end) {
      ahead_.resize(static_cast<size_t>(std::min(kReadAhead, size_ - offset)));
      begin_ = offset;
      const absl::Status status = read_(offset, static_cast<int64_t>(ahead_.size()), ahead_.data());
      if (!status.ok()) {
        ahead_.clear();
        return status;
      }
    }
    std::memcpy(out, ahead_.data() + (offset - begin_), static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
  const RangeReader read_;
  mutable absl::Mutex mutex_;
  mutable std::string ahead_ ABSL_GUARDED_BY(mutex_);  // the bytes from begin_ on
  mutable int64_t begin_ ABSL_GUARDED_BY(mutex_) = 0;
};

class CachedRemoteFile : public ReadableFile {
 public:
  CachedRemoteFile(int64_t size, RangeReader read, int64_t block_bytes,
                   std::vector<std::string> block_sha256, HostCache* cache)
      : size_(size),
        read_(std::move(read)),
        block_bytes_(block_bytes),
        block_sha256_(std::move(block_sha256)),
        cache_(*cache) {}

  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
    if (absl::Status s = CheckRange(size_, offset, bytes); !s.ok()) return s;
    char* next = static_cast<char*>(out);
    absl::MutexLock lock(&mutex_);
    while (bytes > 0) {
      const int64_t block = offset / block_bytes_;
      if (absl::Status s = Load(block); !s.ok()) return s;
      const int64_t at = offset - block * block_bytes_;
      const int64_t here = std::min(bytes, static_cast<int64_t>(content_.size()) - at);
      std::memcpy(next, content_.data() + at, static_cast<size_t>(here));
      next += here;
      offset += here;
      bytes -= here;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Load(int64_t block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (block == loaded_) return absl::OkStatus();
    loaded_ = -1;
    const int64_t begin = block * block_bytes_;
    const int64_t bytes = std::min(block_bytes_, size_ - begin);
    const std::string sha256 = absl::BytesToHexString(block_sha256_[static_cast<size_t>(block)]);
    std::optional<std::string> cached = cache_.Read(sha256, bytes);
    if (cached.has_value()) {
      content_ = *std::move(cached);
    } else {
      content_.resize(static_cast<size_t>(bytes));
      if (absl::Status s = read_(begin, bytes, content_.data()); !s.ok()) return s;
      if (Sha256Hex(content_) != sha256) {
        return absl::DataLossError(absl::StrCat("bytes ", begin, " to ", begin + bytes,
                                                " did not arrive as the coordinator has them"));
      }
      cache_.Write(sha256, content_);
    }
    loaded_ = block;
    return absl::OkStatus();
  }

  const int64_t size_;
  const RangeReader read_;
  const int64_t block_bytes_;
  const std::vector<std::string> block_sha256_;
  HostCache& cache_;
  mutable absl::Mutex mutex_;
  mutable int64_t loaded_ ABSL_GUARDED_BY(mutex_) = -1;  // the block in content_; -1: none
  mutable std::string content_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<ReadableFile> NewRemoteFile(int64_t size, RangeReader read) {
  return std::make_unique<RemoteFile>(size, std::move(read));
}

std::unique_ptr<ReadableFile> NewCachedRemoteFile(int64_t size, RangeReader read,
                                                  int64_t block_bytes,
                                                  std::vector<std::string> block_sha256,
                                                  HostCache* cache) {
  return std::make_unique<CachedRemoteFile>(size, std::move(read), block_bytes,
                                            std::move(block_sha256), cache);
}

}  // namespace espalier
