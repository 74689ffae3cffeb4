#include "server/services/call_interceptor.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <exception>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/net/authenticated_channel.h"

namespace espalier {
namespace {

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace

absl::Status CallInterceptor::Run(grpc::ServerContext* context, const std::string& method,
                                  const std::function<absl::Status()>& body, CallKind kind) {
  const int counted = kind == CallKind::kBounded ? 1 : 0;
  const absl::Cleanup over = [&] { open_ -= counted; };
  if ((open_ += counted) > options_.max_calls && counted > 0) {
    context->AddTrailingMetadata("retry-after", "1");
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_calls,
                     " calls are open, as many as this daemon answers at once; end some, come "
                     "again later, or start it with a larger --grpc-max-calls"));
  }
  // Third-party code may throw, but no client input may end the process.
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(method, ": unexpected error: ", error.what()));
  }
}

grpc::Status CallInterceptor::Handle(grpc::ServerContext* context, const std::string& method,
                                     const google::protobuf::Message* request, const Body& body,
                                     CallKind kind) {
  const auto start = std::chrono::steady_clock::now();
  const bool open =
      (kind == CallKind::kProbe && options_.open_probes) || kind == CallKind::kHasToken;
  const absl::StatusOr<Caller> caller =
      open ? Caller()
           : access_.Admit(method, AuthorizationOf(*context), PeerCertificateOf(*context));
  absl::Status status = caller.status();
  if (status.ok() && options_.leads) status = options_.leads();
  if (status.ok() && request != nullptr) status = access_.CheckRequest(method, *caller, *request);
  if (status.ok())
    status = Run(
        context, method, [&] { return body(*caller); }, kind);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  metrics_->GrpcRequest(method, CodeName(status.code()), seconds);
  if (status.ok()) {
    spdlog::debug("rpc method={} peer={} code=OK seconds={:.6f}", method, context->peer(), seconds);
  } else {
    spdlog::info("rpc method={} peer={} code={} seconds={:.6f} error=\"{}\"", method,
                 context->peer(), CodeName(status.code()), seconds,
                 absl::CHexEscape(status.message().substr(0, 500)));
  }
  return ToGrpc(status);
}

}  // namespace espalier
