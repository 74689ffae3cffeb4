#include <grpcpp/grpcpp.h>

#include "espalier/v1/recording.grpc.pb.h"
#include "server/recordings/run_queries.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class RecordingsService : public v1::Recordings::Service {
 public:
  RecordingsService(CallInterceptor* interceptor, RunQueries* runs)
      : interceptor_(*interceptor), runs_(*runs) {}

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
  grpc::Status Diff(ServerContext* context, const v1::DiffRunsRequest* request,
                    v1::DiffRunsReply* reply) override {
    return interceptor_.Handle(context, "Recordings/Diff", request, [&](const Caller& caller) {
      return runs_.Diff(*request, caller, reply);
    });
  }

 private:
  CallInterceptor& interceptor_;
  RunQueries& runs_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRecordingsService(CallInterceptor* interceptor,
                                                     RunQueries* runs) {
  return std::make_unique<RecordingsService>(interceptor, runs);
}

}  // namespace espalier
