// The gRPC services of the coordinator: thin adapters that call other components through the
// CallInterceptor. gRPC types stay in the .cc files.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/caller.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/models.pb.h"

namespace grpc {
class Service;
}

namespace espalier {

class CallInterceptor;
class HistoryQuery;
class JobRunner;
class JobStore;
class OpRegistry;
class PlannerRequestHandler;
class Rendezvous;
class ReplayManager;
class ReplayPlanner;
class RunQueries;
class WorkerRegistry;
struct QuantizeTools;

// All arguments must outlive the service.
std::unique_ptr<grpc::Service> MakeTrainingService(CallInterceptor* interceptor, JobRunner* jobs);
std::unique_ptr<grpc::Service> MakeRecordingsService(CallInterceptor* interceptor, RunQueries* runs,
                                                     const ReplayPlanner* planner);
std::unique_ptr<grpc::Service> MakeReplayService(CallInterceptor* interceptor,
                                                 ReplayManager* replays,
                                                 const HistoryQuery* history);
std::unique_ptr<grpc::Service> MakePlannerService(CallInterceptor* interceptor,
                                                  PlannerRequestHandler* plans);
std::unique_ptr<grpc::Service> MakeOpsService(CallInterceptor* interceptor,
                                              const OpRegistry* registry);
// `check_servable` returns why an uploaded model cannot be served.
std::unique_ptr<grpc::Service> MakeModelsService(
    CallInterceptor* interceptor, const QuantizeTools& tools, JobStore* store,
    std::function<absl::Status(const v1::Artifact&)> check_servable);
struct ClusterServiceOptions {
  v1::JoinReply joined;  // what Join replies, but for the lease and shares_data_dir
  // Decides whether a worker may join, and returns whether it shares the data folder.
  std::function<absl::StatusOr<bool>(const v1::JoinRequest&)> check_worker;
  // Fills in the fields that the registry does not know, as far as the caller may know them.
  std::function<void(const Caller&, v1::ClusterStatusReply*)> status;
  const JobStore* store = nullptr;
  std::string backup_folder;  // for copies on their way, on the disk of the store
};
std::unique_ptr<grpc::Service> MakeClusterService(CallInterceptor* interceptor,
                                                  WorkerRegistry* workers, Rendezvous* rendezvous,
                                                  ClusterServiceOptions options);

}  // namespace espalier
