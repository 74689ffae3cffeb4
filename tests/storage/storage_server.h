// The Storage service over gRPC on loopback, for tests and benchmarks.
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/net/grpc_status.h"
#include "server/access/access_control.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/metrics/metrics.h"
#include "server/services/call_interceptor.h"
#include "server/storage/storage_service.h"
#include "storage/folder_checkpoint_store.h"
#include "worker/storage/coordinator_store.h"

namespace espalier {

// The coordinator's side: the Storage service with one worker and the first attempt of job-1.
class StorageServer {
 public:
  StorageServer() {
    std::filesystem::remove_all(root_);
    v1::JoinRequest join;
    join.set_protocol_version(kProtocolVersion);
    join.set_address("127.0.0.1:1");
    join.set_call_key(std::string(32, 'k'));
    join.mutable_device()->set_kind(v1::Device::CPU);
    join.mutable_device()->set_memory_bytes(1);
    join.mutable_device()->set_matmul_flops(1);
    join.mutable_device()->set_memory_bandwidth(1);
    lease_ = *workers_.Join(join);
    Assign();
    rendezvous_.Begin("job-1", 1);
    service_ = NewStorageService({.interceptor = &interceptor_,
                                  .workers = &workers_,
                                  .rendezvous = &rendezvous_,
                                  .data_folder = &data_folder_,
                                  .uploads = &uploads_});
    Start();
    stub_ = v1::Storage::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(), ChannelLimits()));
  }
  ~StorageServer() {
    Shutdown();
    std::filesystem::remove_all(root_);
  }

  // Ends all connections; the coordinator forgets nothing.
  void Break() {
    Shutdown();
    Start();
  }
  void Shutdown() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  StorageClientOptions ClientOptions(const std::string& job = "job-1", uint64_t attempt = 1) const {
    StorageClientOptions options;
    options.stub = stub_.get();
    *options.caller.mutable_lease() = lease_;
    options.caller.set_job_id(job);
    options.caller.set_attempt(attempt);
    return options;
  }
  std::unique_ptr<CoordinatorStore> Store(const std::string& root,
                                          HostCache* cache = nullptr) const {
    return std::make_unique<CoordinatorStore>(std::make_shared<StorageClient>(ClientOptions()),
                                              root, cache);
  }

  FolderCheckpointStore& data_folder() { return data_folder_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  WorkerRegistry& workers() { return workers_; }
  // The worker to the job.
  void Assign() { (void)workers_.Assign(workers_.Idle(), "job-1"); }
  const v1::Lease& lease() const { return lease_; }

 private:
  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) std::abort();
  }

  const std::string root_ = std::filesystem::temp_directory_path().string() +
                            absl::StrCat("/espalier-storage-server-", getpid());
  SystemClock clock_;
  Metrics metrics_;
  AccessControl access_{nullptr};
  CallInterceptor interceptor_{&metrics_, &access_};
  WorkerRegistry workers_{&clock_, absl::Minutes(10), [] { return absl::StatusOr<uint64_t>(1); }};
  Rendezvous rendezvous_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FolderCheckpointStore data_folder_{*files_, root_};
  Uploads uploads_{&data_folder_, &clock_};
  v1::Lease lease_;
  std::unique_ptr<grpc::Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Storage::Stub> stub_;
};

}  // namespace espalier
