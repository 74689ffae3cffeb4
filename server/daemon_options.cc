#include "server/daemon_options.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/net/own_address.h"
#include "server/http/gateway/origin_policy.h"
#include "storage/s3/endpoint.h"

namespace espalier {
namespace {

absl::Status CheckAddress(const char* flag, const std::string& address,
                          const DaemonOptions& options) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", address, ": host:port is wanted"));
  }
  const bool closed =
      options.automatic_tls || (!options.tls.certificate.empty() && !options.api_key_file.empty());
  if (!IsLoopback(address) && !closed && !options.insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "=", address,
        " is off loopback, where everyone who reaches it may command this daemon; listen on "
        "127.0.0.1, or give --tls=auto, or --tls-cert, --tls-key and --api-key-file, or pass "
        "--insecure on a network that you trust"));
  }
  return absl::OkStatus();
}

absl::Status CheckTls(const DaemonOptions& options) {
  if (!options.advertise.empty()) {
    for (const absl::string_view address : absl::StrSplit(options.advertise, ',')) {
      const absl::StatusOr<HostAndPort> read =
          ParseHostAndPort(std::string(address), "--advertise");
      if (!read.ok()) return read.status();
    }
  }
  const TlsFiles& files = options.tls;
  const bool given = !files.certificate.empty() || !files.key.empty() || !files.ca.empty() ||
                     !files.client_ca.empty();
  if (options.automatic_tls && given) {
    return absl::InvalidArgumentError(
        "--tls=auto makes its own certificates: leave out --tls-cert, --tls-key, --tls-ca and "
        "--tls-client-ca, or --tls=auto");
  }
  if (!(options.worker_certificate_life >= absl::Seconds(1) &&
        options.worker_certificate_life <= absl::Hours(24 * 366))) {
    return absl::InvalidArgumentError("--worker-certificate-hours: a second to 366 days");
  }
  return absl::OkStatus();
}

// Also for a coordinator that stands by: what cannot work is not to be found out when it must lead.
absl::Status CheckStores(const DaemonOptions& options) {
  if (options.artifact_store.empty()) return absl::OkStatus();
  if (const auto url = s3::ParseS3Url(options.artifact_store); !url.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--artifact-store is '", options.artifact_store,
                     "'; accepted: s3://BUCKET[/PREFIX]: ", std::string(url.status().message())));
  }
  if (options.job_store.address.endpoints.empty()) return absl::OkStatus();
  if (!absl::StartsWith(options.checkpoint_store, s3::kScheme)) {
    return absl::InvalidArgumentError(
        "--artifact-store with --job-store=etcd:// is for coordinators that share no folder, so "
        "checkpoints must not be in one either: give --checkpoint-store=s3://BUCKET[/PREFIX] (the "
        "same will do)");
  }
  if (options.automatic_tls) {
    return absl::InvalidArgumentError(
        "--tls=auto keeps its CA in --data-dir, which coordinators with --artifact-store and "
        "--job-store=etcd:// do not share, so workers and clients of one would not trust another: "
        "give --tls-cert, --tls-key, --tls-ca and --api-key-file, or share the folder and leave "
        "out --artifact-store");
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const GrpcLimits& limits) {
  if (!(limits.idle >= absl::Milliseconds(100))) {
    return absl::InvalidArgumentError("--grpc-idle-seconds: at least 0.1");
  }
  constexpr int kMaxCalls = 1 << 16;
  for (const auto& [flag, value] : {std::pair("grpc-max-calls", limits.max_calls),
                                    std::pair("grpc-max-streams", limits.max_streams)}) {
    if (value >= 1 && value <= kMaxCalls) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", value, ": expected 1 to ", kMaxCalls));
  }
  constexpr int64_t kMinMemory = 16 << 20;
  if (limits.memory_bytes < kMinMemory) {
    return absl::InvalidArgumentError(absl::StrCat("--grpc-memory-bytes=", limits.memory_bytes,
                                                   ": expected at least ", kMinMemory));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDaemonOptions(const DaemonOptions& options) {
  absl::Status status = CheckAddress("listen", options.listen, options);
  if (status.ok() && !options.http_listen.empty()) {
    status = CheckAddress("http-listen", options.http_listen, options);
  }
  if (status.ok()) status = CheckTls(options);
  if (status.ok()) status = CheckSharedStoreOptions(options.job_store);
  if (status.ok()) status = CheckStores(options);
  if (!status.ok()) return status;
  status = OriginPolicy::CheckAllowed(options.http_allowed_origins);
  if (!status.ok()) return status;
  if (!(options.drain >= absl::ZeroDuration())) {
    return absl::InvalidArgumentError("--drain-seconds: 0 or more");
  }
  if (options.response_store_bytes < 0) {
    return absl::InvalidArgumentError("--response-store-bytes must be 0 or more");
  }
  if (options.record_bytes <= 0) {
    return absl::InvalidArgumentError("--record-bytes must be more than 0");
  }
  if (options.recordings_bytes < 0) {
    return absl::InvalidArgumentError("--recordings-bytes must be 0 or more");
  }
  if (!(options.lease >= absl::Milliseconds(500))) {
    return absl::InvalidArgumentError("--lease-seconds: at least 0.5");
  }
  if (!(options.worker_return >= absl::ZeroDuration())) {
    return absl::InvalidArgumentError("--worker-return-timeout: 0 or more seconds");
  }
  return CheckLimits(options.limits);
}

}  // namespace espalier
