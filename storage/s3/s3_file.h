// An object of S3 as a file.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "storage/s3/s3_client.h"

namespace espalier::s3 {

// Reads always the object that was opened: if another one takes its place, Read returns
// FailedPrecondition; if it is removed, NotFound. Large reads are requests of 8 MiB, several at
// once. Small ones are served from blocks, which grow, and are fetched ahead, while one thread
// reads on from where it was.
class S3File : public ReadableFile {
 public:
  static absl::StatusOr<std::unique_ptr<S3File>> Open(std::shared_ptr<S3Client> client,
                                                      const std::string& key);

  int64_t size() const override { return info_.bytes; }
  const std::string& etag() const { return info_.etag; }
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override;

 private:
  struct Block {
    int64_t offset = 0;
    std::string bytes;
    bool Holds(int64_t at) const {
      return at >= offset && at < offset + static_cast<int64_t>(bytes.size());
    }
  };

  S3File(std::shared_ptr<S3Client> client, std::string key, ObjectInfo info)
      : client_(std::move(client)), key_(std::move(key)), info_(std::move(info)) {}

  absl::Status Fetch(int64_t offset, int64_t bytes, char* out) const;
  absl::Status FetchAtOnce(int64_t offset, int64_t bytes, char* out) const;
  // Makes block_ hold the byte at `offset`, and at least `bytes` bytes from there.
  absl::Status MoveBlock(int64_t offset, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadBlocks(int64_t offset, int64_t bytes, char* out) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<S3Client> client_;
  const std::string key_;
  const ObjectInfo info_;

  mutable absl::Mutex mutex_;
  mutable Block block_ ABSL_GUARDED_BY(mutex_);
  mutable int64_t ahead_offset_ ABSL_GUARDED_BY(mutex_) = -1;
  mutable std::future<absl::StatusOr<Block>> ahead_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier::s3
