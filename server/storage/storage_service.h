// The Storage service (espalier/v1/storage.proto).
#pragma once

#include <memory>

#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/storage/uploads.h"
#include "storage/folder_checkpoint_store.h"

namespace grpc {
class Service;
}

namespace espalier {

class CallInterceptor;

// All must outlive the service.
struct StorageServiceOptions {
  CallInterceptor* interceptor = nullptr;
  const WorkerRegistry* workers = nullptr;
  Rendezvous* rendezvous = nullptr;
  FolderCheckpointStore* data_folder = nullptr;
  Uploads* uploads = nullptr;  // to the data folder
  // Uploads and reads at once; others wait for their turn.
  int max_streams = 16;
};

std::unique_ptr<grpc::Service> NewStorageService(const StorageServiceOptions& options);

}  // namespace espalier
