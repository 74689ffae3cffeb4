#include "server/sessions/session_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "espalier/v1/session.grpc.pb.h"
#include "server/services/call_interceptor.h"
#include "server/sessions/session_manager.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class SessionService final : public v1::Sessions::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::SessionReply, v1::SessionCommand>;

  SessionService(CallInterceptor* interceptor, SessionManager* sessions)
      : interceptor_(*interceptor), sessions_(*sessions) {}

  grpc::Status Open(ServerContext* context, const v1::OpenSessionRequest* request,
                    v1::OpenSessionReply* reply) override {
    return interceptor_.Handle(context, "Sessions/Open", request, [&](const Caller& caller) {
      return sessions_.Open(
          *request, caller.owner, [&] { return context->IsCancelled(); }, reply);
    });
  }
  grpc::Status Run(ServerContext* context, Stream* stream) override {
    return interceptor_.Handle(context, "Sessions/Run", nullptr, [&](const Caller& caller) {
      return RunStream(context, caller, stream);
    });
  }
  grpc::Status Close(ServerContext* context, const v1::CloseSessionRequest* request,
                     v1::CloseSessionReply*) override {
    return interceptor_.Handle(
        context, "Sessions/Close", request,
        [&](const Caller&) { return sessions_.Close(request->session_id()); }, CallKind::kShort);
  }
  grpc::Status List(ServerContext* context, const v1::ListSessionsRequest* request,
                    v1::ListSessionsReply* reply) override {
    return interceptor_.Handle(context, "Sessions/List", request, [&](const Caller& caller) {
      for (v1::SessionInfo& info : sessions_.List()) *reply->add_sessions() = std::move(info);
      KeepUsable(caller, reply->mutable_sessions());
      return absl::OkStatus();
    });
  }

 private:
  bool Read(ServerContext* context, Stream* stream, v1::SessionCommand* message) {
    const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
    return stream->Read(message);
  }

  absl::Status RunStream(ServerContext* context, const Caller& caller, Stream* stream) {
    v1::SessionCommand message;
    if (!Read(context, stream, &message)) {
      return absl::InvalidArgumentError("session_id: the stream ended before its first message");
    }
    const AccessControl& access = interceptor_.access();
    absl::Status status = access.CheckRequest("Sessions/Run", caller, message);
    if (!status.ok()) return status;
    absl::StatusOr<std::shared_ptr<Session>> session = sessions_.Find(message.session_id());
    if (!session.ok()) return session.status();
    std::atomic<bool> taken_over = false;
    status = (*session)->Attach([&] {
      taken_over = true;
      context->TryCancel();
    });
    if (!status.ok()) return status;
    const absl::Cleanup detach = [&] { (*session)->Detach(); };
    const auto emit = [&](const v1::SessionReply& reply) {
      const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
      return stream->Write(reply);
    };
    const auto may_save = [&](const std::string& artifact) {
      return access.Check(caller, ResourceKind::kArtifact, ResourceUse::kCreate, artifact);
    };
    (*session)->Begin(message.answered(), emit);
    do {
      // The first message may be no command yet.
      if (message.number() == 0) continue;
      status = (*session)->Take(std::move(message), may_save, emit);
      if (!status.ok()) return status;
      message.Clear();
    } while (Read(context, stream, &message));
    return taken_over ? absl::AbortedError(
                            "another stream has taken the session over, or it was "
                            "closed")
                      : absl::OkStatus();
  }

  CallInterceptor& interceptor_;
  SessionManager& sessions_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewSessionService(CallInterceptor* interceptor,
                                                 SessionManager* sessions) {
  return std::make_unique<SessionService>(interceptor, sessions);
}

}  // namespace espalier
