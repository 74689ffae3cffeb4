// Sends an object to the coordinator in chunks. Chunks whose arrival the coordinator has not
// acknowledged are kept, and sent again on a new stream if one breaks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/sha256.h"
#include "espalier/v1/storage.grpc.pb.h"
#include "storage/checkpoint_store.h"
#include "worker/storage/cancellation.h"
#include "worker/storage/retries.h"

namespace espalier {

struct ObjectUploadOptions {
  v1::Storage::StubInterface* stub = nullptr;  // must outlive the upload
  v1::StorageCaller caller;
  std::string name;
  absl::Duration patience;                     // how long to try without progress
  std::shared_ptr<Cancellation> cancellation;  // may be null
};

class ObjectUpload : public CheckpointStore::Upload {
 public:
  static absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> Begin(
      ObjectUploadOptions options);
  ~ObjectUpload() override;

  absl::Status Append(const void* data, int64_t bytes) override;
  absl::Status Commit() override;

 private:
  static constexpr int64_t kChunkBytes = 1 << 20;
  // Sent and not yet acknowledged: as much as a connection of 1 GB/s holds in 16 ms.
  static constexpr size_t kMostPending = 16;

  ObjectUpload(ObjectUploadOptions options, std::string id);

  // Opens a stream, learns how much has arrived, and sends what is pending after that.
  absl::Status Connect();
  // Connects until it succeeds or nothing helps. `status` is why the last stream broke.
  absl::Status Reconnect(absl::Status status);
  absl::Status SendFull();
  // Reads one acknowledgement.
  absl::Status ReadReply(bool* durable);
  void DropReceived();  // from pending_
  // The status with which the stream has ended.
  absl::Status StatusOfStream();
  absl::Status At(const absl::Status& status) const;

  const ObjectUploadOptions options_;
  const std::string id_;
  Retries retries_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::optional<Cancellation::Call> call_;  // with context_
  std::unique_ptr<grpc::ClientReaderWriterInterface<v1::PutObjectRequest, v1::PutObjectReply>>
      stream_;
  Sha256 hash_;
  int64_t bytes_ = 0;                         // appended
  int64_t received_ = 0;                      // acknowledged
  std::string filling_;                       // the next chunk
  std::deque<v1::PutObjectRequest> pending_;  // chunks sent
};

}  // namespace espalier
