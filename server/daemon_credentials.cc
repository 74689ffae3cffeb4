#include "server/daemon_credentials.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/net/own_address.h"

namespace espalier {
namespace {

absl::Status MakeOwn(DaemonOptions* options, const Clock* clock, DaemonCredentials* credentials) {
  std::vector<std::string> hosts;
  std::vector<std::string> addresses = absl::StrSplit(options->advertise, ',');
  addresses.push_back(options->listen);
  addresses.push_back(options->http_listen);
  for (const std::string& address : addresses) {
    const absl::StatusOr<HostAndPort> read = ParseHostAndPort(address, "the address");
    if (read.ok()) hosts.push_back(read->host);
  }
  absl::StatusOr<std::unique_ptr<AutomaticTls>> made =
      AutomaticTls::Open(options->data_dir, std::move(hosts), clock);
  if (!made.ok()) return made.status();
  credentials->automatic = *std::move(made);
  options->tls = credentials->automatic->files();
  if (!options->api_key_file.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> key = credentials->automatic->AdminKeyFile();
  if (!key.ok()) return key.status();
  options->api_key_file = credentials->admin_key_file = *std::move(key);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DaemonCredentials> ReadDaemonCredentials(DaemonOptions* options,
                                                        const Clock* clock) {
  DaemonCredentials credentials;
  if (options->automatic_tls) {
    if (absl::Status s = MakeOwn(options, clock, &credentials); !s.ok()) return s;
  } else if (options->tls.certificate.empty() && !options->insecure &&
             AutomaticTls::IsIn(options->data_dir)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--data-dir=", options->data_dir,
        " belongs to a coordinator with --tls=auto, whose workers and clients would not find this "
        "one: give --tls=auto again, and the same --listen; without it: --tls-cert and --tls-key, "
        "or --insecure"));
  }
  if (!options->api_key_file.empty()) {
    absl::StatusOr<ApiKeys> keys = ApiKeys::Read(options->api_key_file);
    if (!keys.ok()) return keys.status();
    credentials.keys = *std::move(keys);
  }
  absl::StatusOr<TransportSecurity> tls = TransportSecurity::Read(options->tls);
  if (!tls.ok()) return tls.status();
  credentials.tls = *std::move(tls);
  return credentials;
}

std::vector<Credential> WatchedCredentials(const DaemonCredentials& credentials,
                                           std::function<void(const TlsPem&)> changed) {
  std::vector<Credential> watched =
      CredentialsOf(credentials.tls, credentials.keys, std::move(changed));
  if (credentials.automatic == nullptr) return watched;
  // Before the others, which find what it writes.
  const auto renew = [automatic = credentials.automatic]() -> absl::StatusOr<bool> {
    if (absl::Status s = automatic->Renew(); !s.ok()) return s;
    return false;
  };
  watched.insert(watched.begin(), Credential{"certificates", "", renew, nullptr});
  return watched;
}

absl::Status WriteReadyFile(const DaemonOptions& options, const DaemonCredentials& credentials,
                            const std::string& grpc, const std::string& http) {
  const std::string& path = options.ready_file;
  if (path.empty()) return absl::OkStatus();
  const AutomaticTls* const automatic = credentials.automatic.get();
  nlohmann::ordered_json json;
  // A certificate names no address that stands for all.
  json["grpc"] = automatic == nullptr ? grpc : ReachableAddress(grpc);
  json["http"] = automatic == nullptr ? http : ReachableAddress(http);
  json["pid"] = getpid();
  // JSON has no infinity.
  json["drain_seconds"] = std::min(absl::ToDoubleSeconds(options.drain), 1e9);
  if (automatic != nullptr) json["ca_file"] = automatic->authority().ca_path();
  if (!credentials.admin_key_file.empty()) json["token_file"] = credentials.admin_key_file;
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::trunc);
  file << json.dump() << "\n";
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    return absl::UnavailableError(absl::StrCat("--ready-file=", path, " cannot be written"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Introduce(const DaemonCredentials& credentials, const std::string& grpc,
                                      const std::string& http) {
  if (credentials.automatic == nullptr) return "";
  const absl::StatusOr<std::string> home =
      credentials.automatic->WriteHome(grpc, http, credentials.admin_key_file);
  if (!home.ok()) return home.status();
  std::string said = absl::StrCat("espalierd tls=auto: its CA is ",
                                  credentials.automatic->authority().ca_path(), "\n");
  if (!credentials.admin_key_file.empty()) {
    absl::StrAppend(&said, "  the key of an admin: ", credentials.admin_key_file, "\n");
  }
  absl::StrAppend(&said, "  commands on this host: export ESPALIER_HOME=", *home,
                  "\n  workers on other hosts: espalier token create --role=worker\n");
  return said;
}

}  // namespace espalier
