#include "server/distillation/distillation_service.h"

#include <grpcpp/grpcpp.h>

#include "espalier/v1/distillation.grpc.pb.h"
#include "server/distillation/distillation_runner.h"
#include "server/services/call_interceptor.h"

namespace espalier {
namespace {

using grpc::ServerContext;
using v1::DistillationReply;
using v1::DistillationRequest;

class DistillationService final : public v1::Distillation::Service {
 public:
  DistillationService(CallInterceptor* interceptor, DistillationRunner* runner)
      : interceptor_(*interceptor), runner_(*runner) {}

  grpc::Status SubmitDistillation(ServerContext* context,
                                  const v1::SubmitDistillationRequest* request,
                                  DistillationReply* reply) override {
    return interceptor_.Handle(context, "Distillation/SubmitDistillation",
                               [&] { return runner_.Submit(*request, reply); });
  }
  grpc::Status GetDistillation(ServerContext* context, const DistillationRequest* request,
                               DistillationReply* reply) override {
    return interceptor_.Handle(context, "Distillation/GetDistillation",
                               [&] { return runner_.Get(*request, reply); });
  }
  grpc::Status ListDistillations(ServerContext* context, const v1::ListDistillationsRequest*,
                                 v1::ListDistillationsReply* reply) override {
    return interceptor_.Handle(context, "Distillation/ListDistillations",
                               [&] { return runner_.List(reply); });
  }
  grpc::Status CancelDistillation(ServerContext* context, const DistillationRequest* request,
                                  DistillationReply* reply) override {
    return interceptor_.Handle(
        context, "Distillation/CancelDistillation", [&] { return runner_.Cancel(*request, reply); },
        CallKind::kShort);
  }
  grpc::Status ResumeDistillation(ServerContext* context, const DistillationRequest* request,
                                  DistillationReply* reply) override {
    return interceptor_.Handle(context, "Distillation/ResumeDistillation",
                               [&] { return runner_.Resume(*request, reply); });
  }

 private:
  CallInterceptor& interceptor_;
  DistillationRunner& runner_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewDistillationService(CallInterceptor* interceptor,
                                                      DistillationRunner* runner) {
  return std::make_unique<DistillationService>(interceptor, runner);
}

}  // namespace espalier
