// Checkpoints, and artifacts, in a bucket of S3 or of a server that speaks its protocol.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/checkpoint_store.h"
#include "storage/s3/s3_client.h"

namespace espalier::s3 {

// Objects have the keys "prefix/name". An upload holds some 32 MiB of memory, more beyond 20 GB
// (its parts grow then); an object has at most 290 GB. Objects are opened by their ETag, so a
// reader never sees parts of two.
class S3CheckpointStore : public CheckpointStore {
 public:
  // `url` is "s3://bucket" or "s3://bucket/prefix". Sends nothing.
  static absl::StatusOr<std::unique_ptr<S3CheckpointStore>> Create(const std::string& url,
                                                                   S3World world = SystemS3World());

  // The same store, with calls that end within a second or two once `cancelled` is true.
  std::unique_ptr<S3CheckpointStore> Until(std::shared_ptr<const std::atomic<bool>> cancelled);

  // Writes, reads and removes a small object, and checks that the server keeps the first of two
  // objects when it is asked to (If-None-Match): without that a manifest could be replaced. Sends
  // nothing once it has succeeded. PutIfAbsent does it, too.
  absl::Status Check();
  // Marks the prefix, for good, as that of `owner`, a short text. FailedPrecondition,
  // with the remedy, if it is another's: each of the two would delete what the other keeps.
  absl::Status Claim(const std::string& owner);
  // Whose it is; empty: nobody's.
  absl::StatusOr<std::string> Owner();
  // "s3://bucket/prefix"
  std::string url() const;

  absl::StatusOr<std::unique_ptr<Upload>> Put(const std::string& name) override;
  absl::Status PutIfAbsent(const std::string& name, const std::string& content) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& name) override;
  absl::StatusOr<std::vector<Object>> List(const std::string& folder) override;
  absl::Status DeleteExcept(const std::string& name, const std::vector<std::string>& keep) override;

 private:
  S3CheckpointStore(std::string root, std::shared_ptr<S3Client> client)
      : root_(std::move(root)), client_(std::move(client)) {}

  absl::StatusOr<std::string> KeyOf(const std::string& name) const;
  absl::Status PutFirst(const std::string& key, const std::string& content);

  const std::string root_;  // "" or "prefix/"
  const std::shared_ptr<S3Client> client_;
  absl::Mutex checking_;
  bool checked_ ABSL_GUARDED_BY(checking_) = false;
};

}  // namespace espalier::s3
