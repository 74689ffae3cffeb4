#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "espalier/v1/cluster.grpc.pb.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"

namespace espalier {
namespace {

using grpc::ServerContext;

constexpr double kMaxWaitSeconds = 120;

class ClusterService : public v1::Cluster::Service {
 public:
  ClusterService(CallInterceptor* interceptor, WorkerRegistry* workers, Rendezvous* rendezvous,
                 double heartbeat_seconds, std::function<void(v1::ClusterStatusReply*)> status)
      : interceptor_(*interceptor),
        workers_(*workers),
        rendezvous_(*rendezvous),
        heartbeat_seconds_(heartbeat_seconds),
        status_(std::move(status)) {}

  grpc::Status Join(ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinReply* reply) override {
    return Answer(context, "Cluster/Join", [&]() -> absl::Status {
      absl::StatusOr<v1::Lease> lease = workers_.Join(*request);
      if (!lease.ok()) return lease.status();
      *reply->mutable_lease() = *lease;
      reply->set_heartbeat_seconds(heartbeat_seconds_);
      reply->set_lease_seconds(absl::ToDoubleSeconds(workers_.lease()));
      return absl::OkStatus();
    });
  }

  grpc::Status Heartbeat(ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply*) override {
    return Answer(context, "Cluster/Heartbeat", [&] { return workers_.Heartbeat(*request); });
  }

  grpc::Status Leave(ServerContext* context, const v1::LeaveRequest* request,
                     v1::LeaveReply*) override {
    return Answer(context, "Cluster/Leave", [&] { return workers_.Leave(request->lease()); });
  }

  grpc::Status ListWorkers(ServerContext* context, const v1::ListWorkersRequest*,
                           v1::ListWorkersReply* reply) override {
    return Answer(context, "Cluster/ListWorkers", [&] {
      for (v1::WorkerInfo& info : workers_.List()) *reply->add_workers() = std::move(info);
      return absl::OkStatus();
    });
  }

  grpc::Status Status(ServerContext* context, const v1::ClusterStatusRequest*,
                      v1::ClusterStatusReply* reply) override {
    return Answer(context, "Cluster/Status", [&] {
      for (v1::WorkerInfo& info : workers_.List()) *reply->add_workers() = std::move(info);
      status_(reply);
      return absl::OkStatus();
    });
  }

  grpc::Status StoreSet(ServerContext* context, const v1::StoreSetRequest* request,
                        v1::StoreSetReply*) override {
    return Answer(context, "Cluster/StoreSet", [&] {
      absl::Status status = workers_.Check(request->lease());
      if (!status.ok()) return status;
      return rendezvous_.Set(request->job_id(), request->attempt(), request->key(),
                             request->value());
    });
  }

  grpc::Status StoreGet(ServerContext* context, const v1::StoreGetRequest* request,
                        v1::StoreGetReply* reply) override {
    return Answer(context, "Cluster/StoreGet", [&]() -> absl::Status {
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
  // kShort: a busy daemon must not lose its workers or refuse to list them.
  grpc::Status Answer(ServerContext* context, const std::string& method,
                      const std::function<absl::Status()>& body) {
    return interceptor_.Handle(context, method, body, CallKind::kShort);
  }

  CallInterceptor& interceptor_;
  WorkerRegistry& workers_;
  Rendezvous& rendezvous_;
  const double heartbeat_seconds_;
  const std::function<void(v1::ClusterStatusReply*)> status_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(
    CallInterceptor* interceptor, WorkerRegistry* workers, Rendezvous* rendezvous,
    double heartbeat_seconds, std::function<void(v1::ClusterStatusReply*)> status) {
  return std::make_unique<ClusterService>(interceptor, workers, rendezvous, heartbeat_seconds,
                                          std::move(status));
}

}  // namespace espalier
