// espalierd --tls=auto: a CA, a certificate and an admin's key of the daemon's own, in its data
// folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/transport_security.h"
#include "server/access/certificate_authority.h"

namespace espalier {

// Thread-safe.
class AutomaticTls {
 public:
  // Whether a coordinator with --tls=auto has had this data folder.
  static bool IsIn(const std::string& data_dir);
  // Makes what is missing in `data_dir`/tls. `hosts`: names and addresses for the certificate,
  // beside those of this host. `clock` must outlive this.
  static absl::StatusOr<std::unique_ptr<AutomaticTls>> Open(const std::string& data_dir,
                                                            std::vector<std::string> hosts,
                                                            const Clock* clock);

  const CertificateAuthority& authority() const { return *authority_; }
  // For TransportSecurity::Read.
  TlsFiles files() const;

  // Makes a new certificate if two thirds of the old one's life are over, or this host has other
  // addresses or names than it says. Who reads files() again then finds it.
  absl::Status Renew();

  // Returns the file of a key with the role admin, which is made if missing.
  absl::StatusOr<std::string> AdminKeyFile() const;

  // Makes a folder that is the command line's --home on this host, with the daemon's addresses, CA
  // and, if not empty, key, and returns its path.
  absl::StatusOr<std::string> WriteHome(const std::string& grpc, const std::string& http,
                                        const std::string& key_file) const;

 private:
  AutomaticTls(std::string folder, std::vector<std::string> hosts, const Clock* clock)
      : folder_(std::move(folder)), hosts_(std::move(hosts)), clock_(*clock) {}
  std::string CertificateFolder() const;
  std::vector<std::string> Hosts() const;

  const std::string folder_;
  const std::vector<std::string> hosts_;
  const Clock& clock_;
  std::unique_ptr<CertificateAuthority> authority_;
  absl::Mutex renewing_;
};

}  // namespace espalier
