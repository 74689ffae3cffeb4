// The certificate of a worker that joined by a token: got from the coordinator, kept in the
// worker's cache folder and renewed, so that the token is needed only once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/access_token.h"
#include "base/net/transport_security.h"
#include "base/net/x509.h"
#include "espalier/v1/access.pb.h"

namespace espalier {

// Where certificates come from: the coordinator's Access service.
class CertificateSource {
 public:
  virtual ~CertificateSource() = default;
  // Exchanges a token; `request` lacks nothing. Nothing is said to a server whose CA is another one
  // than the token's.
  virtual absl::StatusOr<v1::IssuedCertificate> Issue(
      const AccessTokenText& token, const v1::IssueCertificateRequest& request) = 0;
  // Shows the certificate in `own`.
  virtual absl::StatusOr<v1::IssuedCertificate> Renew(
      const TlsFiles& own, const v1::RenewCertificateRequest& request) = 0;
};
// Of the coordinators (host:port), that which leads.
std::unique_ptr<CertificateSource> NewCoordinatorCertificates(
    std::vector<std::string> coordinators);

struct KeptIdentityOptions {
  std::string coordinator;  // host:port, several separated by commas; names the kept identity
  // Parents of the folder that keeps it: the first one that can be written to, if none of them has
  // one. Empty: the system's folder of temporary files.
  std::vector<std::string> parents = {""};
  std::vector<std::string> hosts;  // by which others reach the worker
  // Returns the token's text; nothing if there is none. Called for each exchange: a file may have a
  // new one.
  std::function<absl::StatusOr<std::string>()> token;
  absl::Duration timeout = absl::Seconds(30);  // while the coordinator is unreachable
};

// Thread-safe.
class KeptIdentity {
 public:
  // Takes a kept identity that is valid, for this coordinator, and used by no other process; renews
  // it if that is due; otherwise, or if the token is another one than that of the kept identity,
  // exchanges the token for a new one. Returns FailedPrecondition if
  // there is neither; the coordinator's reason if it refuses the token; Unavailable if it does not
  // answer within the timeout. `source` and `clock` must outlive this.
  static absl::StatusOr<std::unique_ptr<KeptIdentity>> Open(KeptIdentityOptions options,
                                                            CertificateSource* source,
                                                            const Clock* clock);
  ~KeptIdentity();

  // For TransportSecurity::Read; its Reload finds what was renewed.
  TlsFiles files() const;
  std::string folder() const { return folder_; }

  // Renews the certificate if two thirds of its life are over, with the certificate itself; if that
  // is refused or too late, exchanges the token, if there is one. Tries again after a sixtieth of
  // the life.
  absl::Status RenewIfDue();
  // Does that on a thread of its own, which logs errors, until the destructor.
  void KeepRenewing();

 private:
  KeptIdentity(KeptIdentityOptions options, CertificateSource* source, const Clock* clock)
      : options_(std::move(options)), source_(*source), clock_(*clock) {}

  // Locks a folder: one with a valid identity if there is one, otherwise an empty one.
  absl::Status TakeFolder(const std::string& ca_sha256);
  // The same of those in one parent. `only_kept`: no empty one, and makes none. Returns whether it
  // has one.
  absl::StatusOr<bool> TakeFolderIn(const std::string& parent, const std::string& ca_sha256,
                                    bool only_kept);
  // Reads the certificate in folder_; false if there is none that can be used.
  bool ReadKept(const std::string& ca_sha256);
  // The key for which tokens are exchanged. It is kept from before the first exchange: one that is
  // made again, by a worker that has ended or lost its certificate, is no further use of the token.
  absl::StatusOr<std::string> ExchangeKey() const;
  absl::Status Exchange();
  absl::Status Renew();
  absl::Status Keep(const v1::IssuedCertificate& issued, const std::string& private_key,
                    const std::string& ca_sha256);
  bool Due() const;
  void Run();

  const KeptIdentityOptions options_;
  CertificateSource& source_;
  const Clock& clock_;
  std::string folder_;
  int lock_ = -1;
  // Of the thread that opens or renews.
  CertificateFields certificate_;  // the kept one
  absl::Time next_try_ = absl::InfinitePast();

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
