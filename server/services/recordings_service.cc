#include <grpcpp/grpcpp.h>

#include "espalier/v1/recording.grpc.pb.h"
#include "server/recordings/run_queries.h"
#include "server/replay/replay_planner.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class RecordingsService : public v1::Recordings::Service {
 public:
  RecordingsService(CallInterceptor* interceptor, RunQueries* runs, const ReplayPlanner* planner)
      : interceptor_(*interceptor), runs_(*runs), planner_(*planner) {}

  grpc::Status List(ServerContext* context, const v1::ListRunsRequest* request,
                    v1::ListRunsReply* reply) override {
    return interceptor_.Handle(context, "Recordings/List", request, [&](const Caller& caller) {
      return runs_.List(*request, caller, reply);
    });
  }
  grpc::Status Get(ServerContext* context, const v1::GetRunRequest* request,
                   v1::GetRunReply* reply) override {
    return interceptor_.Handle(context, "Recordings/Get", request, [&](const Caller& caller) {
      return runs_.Get(*request, caller, reply);
    });
  }
  grpc::Status ListValues(ServerContext* context, const v1::ListRunValuesRequest* request,
                          v1::ListRunValuesReply* reply) override {
    return interceptor_.Handle(
        context, "Recordings/ListValues", request,
        [&](const Caller& caller) { return planner_.ListValues(*request, caller, reply); });
  }
  grpc::Status Diff(ServerContext* context, const v1::DiffRunsRequest* request,
                    v1::DiffRunsReply* reply) override {
    return interceptor_.Handle(context, "Recordings/Diff", request, [&](const Caller& caller) {
      return runs_.Diff(*request, caller, reply);
    });
  }

 private:
  CallInterceptor& interceptor_;
  RunQueries& runs_;
  const ReplayPlanner& planner_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRecordingsService(CallInterceptor* interceptor, RunQueries* runs,
                                                     const ReplayPlanner* planner) {
  return std::make_unique<RecordingsService>(interceptor, runs, planner);
}

}  // namespace espalier
