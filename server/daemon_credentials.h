// What espalierd shows and demands: certificates and API keys, from the files of its flags or, with
// --tls=auto, of its own making.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/net/api_keys.h"
#include "base/net/credential_watch.h"
#include "base/net/transport_security.h"
#include "server/automatic_tls.h"
#include "server/daemon_options.h"

namespace espalier {

struct DaemonCredentials {
  std::optional<ApiKeys> keys;
  TransportSecurity tls;
  std::shared_ptr<AutomaticTls> automatic;  // null without --tls=auto
  std::string admin_key_file;               // that --tls=auto made; empty: there is none
};

// Reads, and with options->automatic_tls first makes, the credentials, and completes the options
// with the files' names. `clock` must outlive what is returned.
absl::StatusOr<DaemonCredentials> ReadDaemonCredentials(DaemonOptions* options, const Clock* clock);

// For CredentialWatch. `changed` runs after each change of the certificates.
std::vector<Credential> WatchedCredentials(const DaemonCredentials& credentials,
                                           std::function<void(const TlsPem&)> changed);

// Writes the file of --ready-file, if there is one.
absl::Status WriteReadyFile(const DaemonOptions& options, const DaemonCredentials& credentials,
                            const std::string& grpc, const std::string& http);

// With --tls=auto: writes the folder that is the command line's home on this host, and returns what
// is to be said of it, in lines. Otherwise nothing.
absl::StatusOr<std::string> Introduce(const DaemonCredentials& credentials, const std::string& grpc,
                                      const std::string& http);

}  // namespace espalier
