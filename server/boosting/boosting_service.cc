#include "server/boosting/boosting_service.h"

#include <grpcpp/grpcpp.h>

#include "proto/boosting.grpc.pb.h"
#include "server/boosting/boost_runner.h"
#include "server/services/guard.h"

namespace espalier {
namespace {

using grpc::ServerContext;
using proto::BoostReply;
using proto::BoostRequest;

class BoostingService final : public proto::Boosting::Service {
 public:
  BoostingService(Guard* guard, BoostRunner* runner) : guard_(*guard), runner_(*runner) {}

  grpc::Status SubmitBoost(ServerContext* context, const proto::SubmitBoostRequest* request,
                           BoostReply* reply) override {
    return guard_.Answer(context, "Boosting/SubmitBoost",
                         [&] { return runner_.Submit(*request, reply); });
  }
  grpc::Status GetBoost(ServerContext* context, const BoostRequest* request,
                        BoostReply* reply) override {
    return guard_.Answer(context, "Boosting/GetBoost",
                         [&] { return runner_.Get(*request, reply); });
  }
  grpc::Status ListBoosts(ServerContext* context, const proto::ListBoostsRequest*,
                          proto::ListBoostsReply* reply) override {
    return guard_.Answer(context, "Boosting/ListBoosts", [&] { return runner_.List(reply); });
  }
  grpc::Status CancelBoost(ServerContext* context, const BoostRequest* request,
                           BoostReply* reply) override {
    return guard_.Answer(
        context, "Boosting/CancelBoost", [&] { return runner_.Cancel(*request, reply); },
        CallKind::kShort);
  }
  grpc::Status ResumeBoost(ServerContext* context, const BoostRequest* request,
                           BoostReply* reply) override {
    return guard_.Answer(context, "Boosting/ResumeBoost",
                         [&] { return runner_.Resume(*request, reply); });
  }

 private:
  Guard& guard_;
  BoostRunner& runner_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewBoostingService(Guard* guard, BoostRunner* runner) {
  return std::make_unique<BoostingService>(guard, runner);
}

}  // namespace espalier
