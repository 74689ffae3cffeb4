// Stands before every RPC: authentication, then the call, then metrics, a log line and the status
// for the wire. Services hold their logic in functions that return absl::Status and are called
// through it:
//
//   grpc::Status Get(grpc::ServerContext* context, const Request* request, Reply* reply) override {
//     return guard_.Answer(context, "Training/Get", [&] { return jobs_.Get(*request, reply); });
//   }
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/metrics/metrics.h"

namespace grpc {
class ServerContext;
class Status;
}  // namespace grpc

namespace espalier {

// gRPC's form of a status. The message is cut to what fits into trailing metadata and made valid
// UTF-8.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Thread-safe.
class Guard {
 public:
  using Authorize =
      std::function<absl::Status(const std::string& method, const std::string& authorization)>;
  Guard(Metrics* metrics, Authorize authorize)
      : metrics_(metrics), authorize_(std::move(authorize)) {}

  // `method` is "Service/Method". An exception that escapes `body` becomes Internal.
  grpc::Status Answer(grpc::ServerContext* context, const std::string& method,
                      const std::function<absl::Status()>& body);
  // For the HTTP gateway: the same decision on an Authorization header.
  absl::Status Check(const std::string& method, const std::string& authorization) const;

 private:
  Metrics* const metrics_;
  const Authorize authorize_;
};

}  // namespace espalier
