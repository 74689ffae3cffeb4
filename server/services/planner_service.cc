#include <grpcpp/grpcpp.h>

#include "proto/plan.grpc.pb.h"
#include "server/jobs/plan_calls.h"
#include "server/services/guard.h"
#include "server/services/services.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class PlannerService : public proto::Planner::Service {
 public:
  PlannerService(Guard* guard, PlanCalls* plans) : guard_(*guard), plans_(*plans) {}

  grpc::Status MakePlan(ServerContext* context, const proto::PlanRequest* request,
                        proto::PlanReply* reply) override {
    return guard_.Answer(context, "Planner/MakePlan", [&] { return plans_.Make(*request, reply); });
  }
  grpc::Status Explain(ServerContext* context, const proto::ExplainRequest* request,
                       proto::ExplainReply* reply) override {
    return guard_.Answer(context, "Planner/Explain",
                         [&] { return plans_.Explain(*request, reply); });
  }
  grpc::Status Export(ServerContext* context, const proto::ExportRequest* request,
                      proto::ExportReply* reply) override {
    return guard_.Answer(context, "Planner/Export", [&] { return plans_.Export(*request, reply); });
  }
  grpc::Status Import(ServerContext* context, const proto::ImportRequest* request,
                      proto::ImportReply* reply) override {
    return guard_.Answer(context, "Planner/Import", [&] { return plans_.Import(*request, reply); });
  }
  grpc::Status Diff(ServerContext* context, const proto::DiffRequest* request,
                    proto::DiffReply* reply) override {
    return guard_.Answer(context, "Planner/Diff", [&] { return plans_.Diff(*request, reply); });
  }
  grpc::Status Profile(ServerContext* context, const proto::ProfileRequest*,
                       proto::ProfileReply* reply) override {
    return guard_.Answer(context, "Planner/Profile", [&] { return plans_.Profile(reply); });
  }
  grpc::Status Machines(ServerContext* context, const proto::MachinesRequest* request,
                        proto::MachinesReply* reply) override {
    return guard_.Answer(context, "Planner/Machines",
                         [&] { return plans_.Machines(*request, reply); });
  }

 private:
  Guard& guard_;
  PlanCalls& plans_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePlannerService(Guard* guard, PlanCalls* plans) {
  return std::make_unique<PlannerService>(guard, plans);
}

}  // namespace espalier
