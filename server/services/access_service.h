// The Access service: tokens, and certificates for workers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"

namespace grpc {
class Service;
}

namespace espalier {

class CallInterceptor;
class CertificateAuthority;
class TokenStore;

struct AccessServiceOptions {
  // Null: there are no tokens, and calls say how to have some.
  TokenStore* tokens = nullptr;
  const CertificateAuthority* authority = nullptr;
  const Clock* clock = nullptr;
  absl::Duration worker_certificate_life;
  // host:port that tokens name, of several coordinators separated by commas; empty: by the
  // following
  std::string advertise;
  // The addresses (host:port) on which the coordinator listens; http_address may return nothing.
  std::function<std::string()> grpc_address, http_address;
};
// All pointers must outlive the service.
std::unique_ptr<grpc::Service> MakeAccessService(CallInterceptor* interceptor,
                                                 AccessServiceOptions options);

}  // namespace espalier
