// The gRPC services of the coordinator: thin adapters that call other components through the
// CallInterceptor. gRPC types stay in the .cc files.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "espalier/v1/cluster.pb.h"

namespace grpc {
class Service;
}

namespace espalier {

class CallInterceptor;
class JobRunner;
class JobStore;
class PlannerRequestHandler;
class Rendezvous;
class WorkerRegistry;
struct QuantizeTools;

// All arguments must outlive the service.
std::unique_ptr<grpc::Service> MakeTrainingService(CallInterceptor* interceptor, JobRunner* jobs);
std::unique_ptr<grpc::Service> MakePlannerService(CallInterceptor* interceptor,
                                                  PlannerRequestHandler* plans);
std::unique_ptr<grpc::Service> MakeModelsService(CallInterceptor* interceptor,
                                                 const QuantizeTools& tools, JobStore* store);
// `status` fills in the fields that the registry does not know.
std::unique_ptr<grpc::Service> MakeClusterService(
    CallInterceptor* interceptor, WorkerRegistry* workers, Rendezvous* rendezvous,
    double heartbeat_seconds, std::function<void(v1::ClusterStatusReply*)> status);

}  // namespace espalier
