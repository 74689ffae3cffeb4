// Writes an object of S3 in parts.
#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/checkpoint_store.h"
#include "storage/s3/s3_client.h"

namespace espalier::s3 {

// Parts of 8 MiB, three on their way at once. An upload of one part is a single PUT.
class S3Upload : public CheckpointStore::Upload {
 public:
  // `tag` is unlike that of any other upload.
  S3Upload(std::shared_ptr<S3Client> client, std::string key, std::string tag)
      : client_(std::move(client)), key_(std::move(key)), tag_(std::move(tag)) {}
  ~S3Upload() override;  // removes the parts of an upload without a Commit

  absl::Status Append(const void* data, int64_t bytes) override;
  absl::Status Commit() override;

 private:
  int64_t PartBytes() const;
  absl::Status SendPart();
  // Waits until at most `count` parts are on their way.
  absl::Status Await(size_t count);

  const std::shared_ptr<S3Client> client_;
  const std::string key_, tag_;
  absl::Status status_;  // the first error
  std::string buffer_;   // of the next part
  PendingUpload upload_;
  bool begun_ = false, done_ = false;
  int parts_ = 0;  // sent, or on their way
  std::deque<std::future<absl::StatusOr<std::string>>> on_their_way_;
  std::vector<std::string> etags_;
};

}  // namespace espalier::s3
