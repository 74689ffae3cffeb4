// Wraps every RPC: checks access (server/access), bounds open calls, runs the call, then records
// metrics, logs a line and converts the status. Services implement their logic in functions that
// return absl::Status and call them through it:
//
//   grpc::Status Get(grpc::ServerContext* context, const Request* request, Reply* reply) override {
//     return interceptor_.Handle(context, "Training/Get", request,
//                                [&](const Caller&) { return jobs_.Get(*request, reply); });
//   }
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/net/caller.h"
#include "base/net/grpc_status.h"
#include "google/protobuf/message.h"
#include "server/access/access_control.h"
#include "server/metrics/metrics.h"
#include "server/services/stream_idle_timeout.h"

namespace grpc {
class ServerContext;
class Status;
}  // namespace grpc

namespace espalier {

// How a call is treated by the bound on open calls.
enum class CallKind {
  kBounded,  // may wait or stream; ResourceExhausted beyond the bound
  // Answers at once, or comes from a worker, which would be lost without an answer. Never refused.
  kShort,
  kProbe,  // as kShort, and needs no key if open_probes
  // As kShort, and needs no key: the body checks the token in the request (AccessRule::has_token).
  kHasToken,
};

struct CallInterceptorOptions {
  // Asked before each call; null: it may be answered. Unavailable: another coordinator leads.
  std::function<absl::Status()> leads;
  bool open_probes = false;
  int max_calls = 512;                     // concurrent kBounded calls
  absl::Duration idle = absl::Minutes(5);  // see StreamIdleTimeout
};

// Thread-safe.
class CallInterceptor {
 public:
  using Body = std::function<absl::Status(const Caller& caller)>;
  // The pointers must outlive the interceptor.
  CallInterceptor(Metrics* metrics, const AccessControl* access,
                  CallInterceptorOptions options = {})
      : metrics_(metrics), access_(*access), options_(options), idle_(options.idle) {}

  // Runs `body` as the RPC `method` ("Service/Method") if its caller may. `request` is null for a
  // stream of requests, whose body calls access().CheckRequest. An exception from `body` becomes
  // Internal.
  grpc::Status Handle(grpc::ServerContext* context, const std::string& method,
                      const google::protobuf::Message* request, const Body& body,
                      CallKind kind = CallKind::kBounded);
  // Used around reads and writes of streams.
  StreamIdleTimeout* idle() { return &idle_; }
  const AccessControl& access() const { return access_; }

 private:
  absl::Status Run(grpc::ServerContext* context, const std::string& method,
                   const std::function<absl::Status()>& body, CallKind kind);

  Metrics* const metrics_;
  const AccessControl& access_;
  const CallInterceptorOptions options_;
  std::atomic<int> open_ = 0;  // open kBounded calls
  StreamIdleTimeout idle_;
};

}  // namespace espalier
