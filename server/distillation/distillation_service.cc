#include "server/distillation/distillation_service.h"

#include <grpcpp/grpcpp.h>

#include "espalier/v1/distillation.grpc.pb.h"
#include "server/distillation/distillation_runner.h"
#include "server/services/call_interceptor.h"

namespace espalier {
namespace {

using grpc::ServerContext;
using v1::BoostReply;
using v1::BoostRequest;

class BoostingService final : public v1::Boosting::Service {
 public:
  BoostingService(CallInterceptor* interceptor, BoostRunner* runner) : interceptor_(*interceptor), runner_(*runner) {}

  grpc::Status SubmitBoost(ServerContext* context, const v1::SubmitBoostRequest* request,
                           BoostReply* reply) override {
    return interceptor_.Handle(context, "Boosting/SubmitBoost",
                         [&] { return runner_.Submit(*request, reply); });
  }
  grpc::Status GetBoost(ServerContext* context, const BoostRequest* request,
                        BoostReply* reply) override {
    return interceptor_.Handle(context, "Boosting/GetBoost",
                         [&] { return runner_.Get(*request, reply); });
  }
  grpc::Status ListBoosts(ServerContext* context, const v1::ListBoostsRequest*,
                          v1::ListBoostsReply* reply) override {
    return interceptor_.Handle(context, "Boosting/ListBoosts", [&] { return runner_.List(reply); });
  }
  grpc::Status CancelBoost(ServerContext* context, const BoostRequest* request,
                           BoostReply* reply) override {
    return interceptor_.Handle(
        context, "Boosting/CancelBoost", [&] { return runner_.Cancel(*request, reply); },
        CallKind::kShort);
  }
  grpc::Status ResumeBoost(ServerContext* context, const BoostRequest* request,
                           BoostReply* reply) override {
    return interceptor_.Handle(context, "Boosting/ResumeBoost",
                         [&] { return runner_.Resume(*request, reply); });
  }

 private:
  CallInterceptor& interceptor_;
  BoostRunner& runner_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewBoostingService(CallInterceptor* interceptor, BoostRunner* runner) {
  return std::make_unique<BoostingService>(interceptor, runner);
}

}  // namespace espalier
