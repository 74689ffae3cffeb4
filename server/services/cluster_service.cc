#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "base/file_system.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"
#include "server/store/job_store.h"

namespace espalier {
namespace {

using grpc::ServerContext;

constexpr double kMaxWaitSeconds = 120;
constexpr int64_t kBackupChunk = 512 << 10;

class ClusterService : public v1::Cluster::Service {
 public:
  ClusterService(CallInterceptor* interceptor, WorkerRegistry* workers, Rendezvous* rendezvous,
                 ClusterServiceOptions options)
      : interceptor_(*interceptor),
        workers_(*workers),
        rendezvous_(*rendezvous),
        options_(std::move(options)) {}

  grpc::Status Join(ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinReply* reply) override {
    return Answer(context, "Cluster/Join", request, [&](const Caller& caller) -> absl::Status {
      if (absl::Status s = CheckJoinRequest(*request); !s.ok()) return s;
      const absl::StatusOr<bool> shares_data_dir = options_.check_worker(*request);
      if (!shares_data_dir.ok()) return shares_data_dir.status();
      absl::StatusOr<v1::Lease> lease = workers_.Join(*request, caller.owner);
      if (!lease.ok()) return lease.status();
      *reply = options_.joined;
      *reply->mutable_lease() = *lease;
      reply->set_shares_data_dir(*shares_data_dir);
      return absl::OkStatus();
    });
  }

  grpc::Status Heartbeat(ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply* reply) override {
    return Answer(context, "Cluster/Heartbeat", request, [&](const Caller&) {
      absl::StatusOr<v1::HeartbeatReply> answer = workers_.Heartbeat(*request);
      if (answer.ok()) *reply = *std::move(answer);
      return answer.status();
    });
  }

  grpc::Status Drain(ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainReply* reply) override {
    return Answer(context, "Cluster/Drain", request, [&](const Caller&) {
      const absl::StatusOr<std::vector<std::string>> jobs = workers_.Drain(request->lease());
      if (jobs.ok()) reply->mutable_jobs()->Assign(jobs->begin(), jobs->end());
      return jobs.status();
    });
  }

  grpc::Status Leave(ServerContext* context, const v1::LeaveRequest* request,
                     v1::LeaveReply*) override {
    return Answer(context, "Cluster/Leave", request,
                  [&](const Caller&) { return workers_.Leave(request->lease()); });
  }

  grpc::Status ListWorkers(ServerContext* context, const v1::ListWorkersRequest* request,
                           v1::ListWorkersReply* reply) override {
    return Answer(context, "Cluster/ListWorkers", request, [&](const Caller& caller) {
      AddWorkers(caller, reply->mutable_workers());
      return absl::OkStatus();
    });
  }

  grpc::Status Status(ServerContext* context, const v1::ClusterStatusRequest* request,
                      v1::ClusterStatusReply* reply) override {
    return Answer(context, "Cluster/Status", request, [&](const Caller& caller) {
      AddWorkers(caller, reply->mutable_workers());
      options_.status(caller, reply);
      return absl::OkStatus();
    });
  }

  grpc::Status Backup(ServerContext* context, const v1::BackupRequest* request,
                      grpc::ServerWriter<v1::BackupReply>* writer) override {
    return interceptor_.Handle(context, "Cluster/Backup", request,
                               [&](const Caller&) { return SendBackup(context, writer); });
  }

  grpc::Status StoreSet(ServerContext* context, const v1::StoreSetRequest* request,
                        v1::StoreSetReply*) override {
    return Answer(context, "Cluster/StoreSet", request, [&](const Caller&) {
      absl::Status status = workers_.Check(request->lease());
      if (!status.ok()) return status;
      return rendezvous_.Set(request->job_id(), request->attempt(), request->key(),
                             request->value());
    });
  }

  grpc::Status StoreGet(ServerContext* context, const v1::StoreGetRequest* request,
                        v1::StoreGetReply* reply) override {
    return Answer(context, "Cluster/StoreGet", request, [&](const Caller&) -> absl::Status {
      absl::Status status = workers_.Check(request->lease());
      if (!status.ok()) return status;
      // A NaN or negative timeout does not wait.
      const double wait =
          request->wait_seconds() > 0 ? std::min(request->wait_seconds(), kMaxWaitSeconds) : 0;
      auto value = rendezvous_.Get(request->job_id(), request->attempt(), request->key(),
                                   absl::Seconds(wait), [&] { return context->IsCancelled(); });
      if (!value.ok()) return value.status();
      reply->set_found(value->has_value());
      if (value->has_value()) reply->set_value(**value);
      return absl::OkStatus();
    });
  }

 private:
  // What workers do for others is not this caller's to know, unless it watches over the cluster.
  void AddWorkers(const Caller& caller,
                  google::protobuf::RepeatedPtrField<v1::WorkerInfo>* workers) const {
    const bool all = caller.Has(Role::kAdmin | Role::kMonitor);
    for (v1::WorkerInfo& info : workers_.List()) {
      if (!all) info.clear_job_id();
      *workers->Add() = std::move(info);
    }
  }

  absl::Status SendBackup(ServerContext* context, grpc::ServerWriter<v1::BackupReply>* writer) {
    const absl::StatusOr<std::string> name = RandomId();
    if (!name.ok()) return name.status();
    const std::string path = JoinPath(options_.backup_folder, *name);
    const absl::Cleanup remove = [&] { files_->Remove(path).IgnoreError(); };
    absl::Status status = options_.store->CheckPresent();
    if (status.ok()) status = files_->CreateDirectories(options_.backup_folder);
    if (status.ok()) {
      status = options_.store->BackUp(path, [context] { return context->IsCancelled(); });
    }
    if (!status.ok()) return status;
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = files_->Open(path);
    if (!file.ok()) return file.status();
    const auto send = [&](const v1::BackupReply& part) {
      const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
      return writer->Write(part) ? absl::OkStatus() : absl::CancelledError("the caller has gone");
    };
    Sha256 sum;
    v1::BackupReply part;
    for (int64_t at = 0; at < (*file)->size() && status.ok();) {
      const int64_t bytes = std::min(kBackupChunk, (*file)->size() - at);
      std::string* chunk = part.mutable_chunk();
      chunk->resize(static_cast<size_t>(bytes));
      status = (*file)->Read(at, bytes, chunk->data());
      if (!status.ok()) return status;
      sum.Add(*chunk);
      status = send(part);
      at += bytes;
    }
    if (!status.ok()) return status;
    part.set_sha256(sum.Hex());
    return send(part);
  }

  // kShort: a busy daemon must not lose its workers or refuse to list them.
  grpc::Status Answer(ServerContext* context, const std::string& method,
                      const google::protobuf::Message* request, const CallInterceptor::Body& body) {
    return interceptor_.Handle(context, method, request, body, CallKind::kShort);
  }

  CallInterceptor& interceptor_;
  WorkerRegistry& workers_;
  Rendezvous& rendezvous_;
  const ClusterServiceOptions options_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(CallInterceptor* interceptor,
                                                  WorkerRegistry* workers, Rendezvous* rendezvous,
                                                  ClusterServiceOptions options) {
  return std::make_unique<ClusterService>(interceptor, workers, rendezvous, std::move(options));
}

}  // namespace espalier
