#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>

#include "espalier/v1/plan.grpc.pb.h"
#include "server/jobs/planner_request_handler.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"

namespace espalier {
namespace {

using grpc::ServerContext;

// Returns true once nobody waits for the answer, or just before the deadline, so that the best plan
// so far still arrives.
std::function<bool()> StopOf(ServerContext* context) {
  const std::chrono::system_clock::time_point now = std::chrono::system_clock::now();
  const std::chrono::system_clock::time_point deadline = context->deadline();
  // Without a deadline, gRPC's value would overflow the clock's arithmetic.
  const bool is_near = deadline < now + std::chrono::hours(24 * 365);
  const auto soon = is_near ? deadline - (deadline - now) / 10 : deadline;
  return [=] { return context->IsCancelled() || std::chrono::system_clock::now() > soon; };
}

class PlannerService : public v1::Planner::Service {
 public:
  PlannerService(CallInterceptor* interceptor, PlannerRequestHandler* plans)
      : interceptor_(*interceptor), plans_(*plans) {}

  grpc::Status MakePlan(ServerContext* context, const v1::PlanRequest* request,
                        v1::PlanReply* reply) override {
    return interceptor_.Handle(context, "Planner/MakePlan", request, [&](const Caller&) {
      return plans_.Make(*request, StopOf(context), reply);
    });
  }
  grpc::Status Explain(ServerContext* context, const v1::ExplainRequest* request,
                       v1::ExplainReply* reply) override {
    return interceptor_.Handle(context, "Planner/Explain", request, [&](const Caller&) {
      return plans_.Explain(*request, StopOf(context), reply);
    });
  }
  grpc::Status Export(ServerContext* context, const v1::ExportRequest* request,
                      v1::ExportReply* reply) override {
    return interceptor_.Handle(context, "Planner/Export", request,
                               [&](const Caller&) { return plans_.Export(*request, reply); });
  }
  grpc::Status Import(ServerContext* context, const v1::ImportRequest* request,
                      v1::ImportReply* reply) override {
    return interceptor_.Handle(context, "Planner/Import", request, [&](const Caller&) {
      return plans_.Import(*request, StopOf(context), reply);
    });
  }
  grpc::Status Diff(ServerContext* context, const v1::DiffRequest* request,
                    v1::DiffReply* reply) override {
    return interceptor_.Handle(context, "Planner/Diff", request,
                               [&](const Caller&) { return plans_.Diff(*request, reply); });
  }
  grpc::Status Profile(ServerContext* context, const v1::ProfileRequest* request,
                       v1::ProfileReply* reply) override {
    return interceptor_.Handle(context, "Planner/Profile", request,
                               [&](const Caller&) { return plans_.Profile(reply); });
  }
  grpc::Status Machines(ServerContext* context, const v1::MachinesRequest* request,
                        v1::MachinesReply* reply) override {
    return interceptor_.Handle(context, "Planner/Machines", request,
                               [&](const Caller&) { return plans_.Machines(*request, reply); });
  }

 private:
  CallInterceptor& interceptor_;
  PlannerRequestHandler& plans_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePlannerService(CallInterceptor* interceptor,
                                                  PlannerRequestHandler* plans) {
  return std::make_unique<PlannerService>(interceptor, plans);
}

}  // namespace espalier
