#include "server/services/call_interceptor.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <exception>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Trailing metadata is limited to 8 KiB, in which a status message is percent-encoded.
constexpr size_t kMaxMessage = 2000;

// Replaces bytes that are not UTF-8 by '?', as strictly as gRPC's Python peers require.
std::string CleanUtf8(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    size_t n = c < 0x80 ? 1 : (c >> 5) == 6 ? 2 : (c >> 4) == 14 ? 3 : (c >> 3) == 30 ? 4 : 0;
    bool good = n > 0 && i + n <= text.size();
    for (size_t k = 1; good && k < n; ++k) good = (text[i + k] & 0xc0) == 0x80;
    if (good) {
      out.append(text.data() + i, n);
    } else {
      n = 1;
      out += '?';
    }
    i += n;
  }
  return out;
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::string_view message = status.message();
  std::string text = CleanUtf8(message.substr(0, kMaxMessage));
  if (message.size() > kMaxMessage) text += " ...";
  // The gRPC library itself reports UNAVAILABLE for a peer that does not answer, but never with
  // details. Details (a google.rpc.Status with the code alone) show that the server did answer.
  const std::string details = absl::IsUnavailable(status) ? "\x08\x0e" : "";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text, details);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status CallInterceptor::Check(const std::string& method, const std::string& authorization) const {
  return authorize_ ? authorize_(method, authorization) : absl::OkStatus();
}

absl::Status CallInterceptor::Run(grpc::ServerContext* context, const std::string& method,
                        const std::function<absl::Status()>& body, CallKind kind) {
  const int counted = kind == CallKind::kBounded ? 1 : 0;
  const absl::Cleanup over = [&] { open_ -= counted; };
  if ((open_ += counted) > options_.max_calls && counted > 0) {
    context->AddTrailingMetadata("retry-after", "1");
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_calls,
                     " calls are open, as many as this daemon answers at once; end some, come "
                     "again later, or start it with a larger --grpc_max_calls"));
  }
  // Third-party code may throw, but no client input may end the process.
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(method, ": unexpected error: ", error.what()));
  }
}

grpc::Status CallInterceptor::Handle(grpc::ServerContext* context, const std::string& method,
                           const std::function<absl::Status()>& body, CallKind kind) {
  const auto start = std::chrono::steady_clock::now();
  std::string authorization;
  auto it = context->client_metadata().find("authorization");
  if (it != context->client_metadata().end()) {
    authorization.assign(it->second.data(), it->second.size());
  }
  const bool open = kind == CallKind::kProbe && options_.open_probes;
  absl::Status status = open ? absl::OkStatus() : Check(method, authorization);
  if (status.ok()) status = Run(context, method, body, kind);
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
