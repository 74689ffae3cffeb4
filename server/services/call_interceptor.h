// Stands before every RPC: authentication, a bound on calls that are open, then the call, then
// metrics, a log line and the status for the wire. Services hold their logic in functions that
// return absl::Status and are called through it:
//
//   grpc::Status Get(grpc::ServerContext* context, const Request* request, Reply* reply) override {
//     return interceptor_.Handle(context, "Training/Get", [&] { return jobs_.Get(*request, reply); });
//   }
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/metrics/metrics.h"
#include "server/services/stream_idle_timeout.h"

namespace grpc {
class ServerContext;
class Status;
}  // namespace grpc

namespace espalier {

// gRPC's form of a status. The message is cut to what fits into trailing metadata and made valid
// UTF-8.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// How a call stands to the bound on open ones.
enum class CallKind {
  kBounded,  // may wait or stream: ResourceExhausted beyond the bound
  // Answers at once, or comes from a worker, which would be lost without an answer: never refused.
  kShort,
  kProbe,  // as kShort, and wants no key where probes are open
};

struct CallInterceptorOptions {
  bool open_probes = false;
  int max_calls = 512;                     // kBounded ones at once
  absl::Duration idle = absl::Minutes(5);  // as in StreamIdleTimeout
};

// Thread-safe.
class CallInterceptor {
 public:
  using Authorize =
      std::function<absl::Status(const std::string& method, const std::string& authorization)>;
  CallInterceptor(Metrics* metrics, Authorize authorize, CallInterceptorOptions options = {})
      : metrics_(metrics),
        authorize_(std::move(authorize)),
        options_(options),
        idle_(options.idle) {}

  // `method` is "Service/Method". An exception that escapes `body` becomes Internal.
  grpc::Status Handle(grpc::ServerContext* context, const std::string& method,
                      const std::function<absl::Status()>& body,
                      CallKind kind = CallKind::kBounded);
  // For reads and writes of streams.
  StreamIdleTimeout* idle() { return &idle_; }
  // For the HTTP gateway: the same decision on an Authorization header.
  absl::Status Check(const std::string& method, const std::string& authorization) const;

 private:
  absl::Status Run(grpc::ServerContext* context, const std::string& method,
                   const std::function<absl::Status()>& body, CallKind kind);

  Metrics* const metrics_;
  const Authorize authorize_;
  const CallInterceptorOptions options_;
  std::atomic<int> open_ = 0;  // kBounded ones
  StreamIdleTimeout idle_;
};

}  // namespace espalier
