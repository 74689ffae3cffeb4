#include "server/distillation/distillation_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "espalier/v1/distillation.grpc.pb.h"
#include "server/distillation/check_distillation_spec.h"
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
    return interceptor_.Handle(
        context, "Distillation/SubmitDistillation", request,
        [&](const Caller& caller) { return SubmitFor(caller, *request, reply); });
  }
  grpc::Status GetDistillation(ServerContext* context, const DistillationRequest* request,
                               DistillationReply* reply) override {
    return interceptor_.Handle(context, "Distillation/GetDistillation", request,
                               [&](const Caller&) { return runner_.Get(*request, reply); });
  }
  grpc::Status ListDistillations(ServerContext* context,
                                 const v1::ListDistillationsRequest* request,
                                 v1::ListDistillationsReply* reply) override {
    return interceptor_.Handle(context, "Distillation/ListDistillations", request,
                               [&](const Caller& caller) {
                                 absl::Status status = runner_.List(reply);
                                 if (status.ok()) KeepUsable(caller, reply->mutable_jobs());
                                 return status;
                               });
  }
  grpc::Status CancelDistillation(ServerContext* context, const DistillationRequest* request,
                                  DistillationReply* reply) override {
    return interceptor_.Handle(
        context, "Distillation/CancelDistillation", request,
        [&](const Caller&) { return runner_.Cancel(*request, reply); }, CallKind::kShort);
  }
  grpc::Status ResumeDistillation(ServerContext* context, const DistillationRequest* request,
                                  DistillationReply* reply) override {
    return interceptor_.Handle(context, "Distillation/ResumeDistillation", request,
                               [&](const Caller&) { return runner_.Resume(*request, reply); });
  }

 private:
  absl::Status SubmitFor(const Caller& caller, const v1::SubmitDistillationRequest& request,
                         DistillationReply* reply) {
    // The names of the models to come, which no field of the request has.
    for (int k = 0; k < std::min(request.spec().ssms_size(), kMaxSsms); ++k) {
      absl::Status status =
          interceptor_.access().Check(caller, ResourceKind::kArtifact, ResourceUse::kCreate,
                                      DistilledArtifact(request.spec().name(), k));
      if (!status.ok()) return status;
    }
    return runner_.Submit(request, caller.owner, reply);
  }

  CallInterceptor& interceptor_;
  DistillationRunner& runner_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewDistillationService(CallInterceptor* interceptor,
                                                      DistillationRunner* runner) {
  return std::make_unique<DistillationService>(interceptor, runner);
}

}  // namespace espalier
