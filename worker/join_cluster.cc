#include "worker/join_cluster.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/net/leading_channel.h"
#include "base/net/own_address.h"
#include "base/net/private_file.h"
#include "base/net/transport_security.h"

namespace espalier {
namespace {

constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";
constexpr char kLoopback[] = "127.0.0.1:0";

absl::StatusOr<std::string> ReadToken(const std::string& text, const std::string& file) {
  if (file.empty()) return text;
  std::ifstream in(file, std::ios::binary);
  const std::string read(std::istreambuf_iterator<char>(in), {});
  if (!in.good() && !in.eof()) {
    return absl::InvalidArgumentError(absl::StrCat("--join-file=", file, " cannot be read"));
  }
  if (absl::Status s = CheckPrivateFile("join-file", file); !s.ok()) return s;
  const std::string token(absl::StripAsciiWhitespace(read));
  if (token.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--join-file=", file,
        " holds no token; a worker that has its certificate needs one no "
        "longer, but then --coordinator=HOST:PORT, which a token, also an old one, tells"));
  }
  return token;
}

// By which others reach the worker.
absl::StatusOr<std::vector<std::string>> HostsOf(const WorkerOptions& options,
                                                 const std::string& coordinator) {
  std::vector<std::string> hosts;
  const bool advertised = !options.advertise.empty();
  const absl::StatusOr<HostAndPort> read = ParseHostAndPort(
      advertised ? options.advertise : options.listen, advertised ? "--advertise" : "--listen");
  if (!read.ok()) return read.status();
  if (!IsAnyAddress(read->host)) return std::vector<std::string>{UsualHost(read->host)};
  // The worker gives its name, then.
  hosts.push_back(OwnHostName());
  const absl::StatusOr<std::string> own = AddressTowards(coordinator);
  if (own.ok()) hosts.push_back(*own);
  return hosts;
}

}  // namespace

absl::StatusOr<JoinedCluster> JoinCluster(WorkerOptions options) {
  if (!options.join_token.empty() && !options.join_file.empty()) {
    return absl::InvalidArgumentError("--join and --join-file: only one of them is accepted");
  }
  absl::StatusOr<std::string> text = ReadToken(options.join_token, options.join_file);
  const bool emptied = absl::IsFailedPrecondition(text.status()) && !options.coordinator.empty();
  if (emptied) text = "";  // its certificate may be enough
  if (!text.ok()) return text.status();
  if (options.coordinator.empty() && !text->empty()) {
    const absl::StatusOr<AccessTokenText> token = ParseAccessToken(*text);
    if (!token.ok()) return token.status();
    options.coordinator = token->coordinator;
  }
  if (options.coordinator.empty()) options.coordinator = kDefaultCoordinator;
  const absl::StatusOr<std::vector<std::string>> coordinators =
      SplitAddresses(options.coordinator, "--coordinator");
  if (!coordinators.ok()) return coordinators.status();
  bool on_loopback = true;
  for (const std::string& address : *coordinators) {
    const absl::StatusOr<HostAndPort> read = ParseHostAndPort(address, "--coordinator");
    if (!read.ok()) return read.status();
    on_loopback = on_loopback && IsLoopback(read->host);
  }
  if (options.listen.empty()) {
    options.listen = kLoopback;
    if (!on_loopback) {
      const absl::StatusOr<std::string> own = AddressTowards(coordinators->front());
      if (!own.ok()) return own.status();
      options.listen = JoinHostAndPort(*own, 0);
    }
  }
  JoinedCluster out;
  const bool given = !options.tls.certificate.empty() || !options.tls.key.empty() ||
                     !options.tls.ca.empty() || !options.tls.client_ca.empty() ||
                     !options.api_key_file.empty();
  if (text->empty() && !emptied && (given || options.insecure || on_loopback)) {
    out.options = std::move(options);
    return out;
  }
  if (given) {
    return absl::InvalidArgumentError(
        "a token takes the place of --tls-cert, --tls-key, --tls-ca, --tls-client-ca and "
        "--api-key-file: leave them out, or --join");
  }
  if (options.identity_dirs.empty()) options.identity_dirs = {options.cache_dir};
  const absl::StatusOr<std::vector<std::string>> hosts = HostsOf(options, coordinators->front());
  if (!hosts.ok()) return hosts.status();
  out.clock = std::make_unique<SystemClock>();
  out.source = NewCoordinatorCertificates(*coordinators);
  absl::StatusOr<std::unique_ptr<KeptIdentity>> identity =
      KeptIdentity::Open({.coordinator = options.coordinator,
                          .parents = options.identity_dirs,
                          .hosts = *hosts,
                          .token = [token = options.join_token, file = options.join_file,
                                    emptied]() -> absl::StatusOr<std::string> {
                            absl::StatusOr<std::string> read = ReadToken(token, file);
                            if (emptied && absl::IsFailedPrecondition(read.status())) return "";
                            return read;
                          },
                          .timeout = options.join_timeout},
                         out.source.get(), out.clock.get());
  if (!identity.ok()) return identity.status();
  out.identity = *std::move(identity);
  options.tls = out.identity->files();
  out.options = std::move(options);
  return out;
}

}  // namespace espalier
