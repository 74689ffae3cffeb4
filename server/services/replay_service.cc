#include <grpcpp/grpcpp.h>

#include "espalier/v1/replay.grpc.pb.h"
#include "server/replay/history_query.h"
#include "server/replay/replay_manager.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class ReplayService : public v1::Replay::Service {
 public:
  ReplayService(CallInterceptor* interceptor, ReplayManager* replays, const HistoryQuery* history)
      : interceptor_(*interceptor), replays_(*replays), history_(*history) {}

  grpc::Status Estimate(ServerContext* context, const v1::EstimateReplayRequest* request,
                        v1::EstimateReplayReply* reply) override {
    return interceptor_.Handle(context, "Replay/Estimate", request, [&](const Caller& caller) {
      return replays_.Estimate(request->spec(), caller, reply->mutable_estimate());
    });
  }
  grpc::Status Start(ServerContext* context, const v1::StartReplayRequest* request,
                     v1::StartReplayReply* reply) override {
    return interceptor_.Handle(context, "Replay/Start", request, [&](const Caller& caller) {
      return replays_.Begin(*request, caller, reply->mutable_replay());
    });
  }
  grpc::Status Watch(ServerContext* context, const v1::WatchReplayRequest* request,
                     grpc::ServerWriter<v1::ReplayEvent>* writer) override {
    return interceptor_.Handle(context, "Replay/Watch", request, [&](const Caller&) {
      return replays_.Watch(
          *request,
          [&](const v1::ReplayEvent& event) {
            const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
            return writer->Write(event);
          },
          [&] { return context->IsCancelled(); });
    });
  }
  grpc::Status Cancel(ServerContext* context, const v1::CancelReplayRequest* request,
                      v1::CancelReplayReply* reply) override {
    return interceptor_.Handle(context, "Replay/Cancel", request, [&](const Caller&) {
      return replays_.Cancel(request->replay_id(), reply->mutable_replay());
    });
  }
  grpc::Status Get(ServerContext* context, const v1::GetReplayRequest* request,
                   v1::GetReplayReply* reply) override {
    return interceptor_.Handle(context, "Replay/Get", request, [&](const Caller&) {
      return replays_.Get(request->replay_id(), reply->mutable_replay());
    });
  }
  grpc::Status Delete(ServerContext* context, const v1::DeleteReplayRequest* request,
                      v1::DeleteReplayReply*) override {
    return interceptor_.Handle(context, "Replay/Delete", request, [&](const Caller&) {
      return replays_.Delete(request->replay_id());
    });
  }
  grpc::Status List(ServerContext* context, const v1::ListReplaysRequest* request,
                    v1::ListReplaysReply* reply) override {
    return interceptor_.Handle(context, "Replay/List", request, [&](const Caller& caller) {
      return replays_.List(request->run(), caller, reply);
    });
  }
  grpc::Status Query(ServerContext* context, const v1::QueryHistoryRequest* request,
                     grpc::ServerWriter<v1::QueryHistoryReply>* writer) override {
    return interceptor_.Handle(context, "Replay/Query", request, [&](const Caller& caller) {
      return history_.Query(*request, caller, [&](const v1::QueryHistoryReply& rows) {
        const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
        return writer->Write(rows);
      });
    });
  }

 private:
  CallInterceptor& interceptor_;
  ReplayManager& replays_;
  const HistoryQuery& history_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReplayService(CallInterceptor* interceptor,
                                                 ReplayManager* replays,
                                                 const HistoryQuery* history) {
  return std::make_unique<ReplayService>(interceptor, replays, history);
}

}  // namespace espalier
