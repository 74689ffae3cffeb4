// Calls of the coordinator's Storage service (espalier/v1/storage.proto), repeated where the
// connection breaks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "espalier/v1/storage.grpc.pb.h"
#include "storage/checkpoint_store.h"
#include "worker/storage/cancellation.h"

namespace espalier {

struct StorageClientOptions {
  v1::Storage::StubInterface* stub = nullptr;             // must outlive the client
  std::shared_ptr<v1::Storage::StubInterface> kept_stub;  // the same, if the client keeps it
  v1::StorageCaller caller;
  // How long a call is tried again without any progress; below the server's Uploads::kKeep.
  absl::Duration patience = absl::Seconds(45);
  // Ends waiting calls. May be null.
  std::shared_ptr<Cancellation> cancellation;
};

// Thread-safe. Names are relative to the coordinator's data folder. Errors are the service's, with
// the name of the object.
class StorageClient {
 public:
  explicit StorageClient(StorageClientOptions options) : options_(std::move(options)) {}

  // Fills `out` with a range of the object.
  absl::Status Read(const std::string& name, int64_t offset, int64_t bytes, void* out) const;
  absl::StatusOr<v1::ListObjectsReply> List(const std::string& folder, bool block_hashes) const;
  // The upload must not outlive the client.
  absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> Put(const std::string& name) const;

 private:
  const StorageClientOptions options_;
};

}  // namespace espalier
