// The certificate authorities of a coordinator that was started with --tls=auto, in its data
// folder. Two of them, so that no worker's certificate can be taken for the coordinator's: one
// signs the certificate that the coordinator shows to workers and clients, and is what they trust;
// the other signs those of workers, and is trusted by the coordinator and among workers.
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/x509.h"

namespace espalier {

// What a worker's certificate says of it.
struct WorkerIdentity {
  std::string name;      // "worker-" and hexadecimal digits
  std::string token_id;  // with which it joined
};

// Thread-safe.
class CertificateAuthority {
 public:
  static constexpr char kCaFile[] =
      "ca.pem";  // in the identity folder (base/net/identity_folder.h)

  // Reads the authorities' certificates and keys in `folder`, or makes them there. `clock` must
  // outlive this. Returns FailedPrecondition, with the path, if what is there cannot be used.
  static absl::StatusOr<std::unique_ptr<CertificateAuthority>> Open(const std::string& folder,
                                                                    const Clock* clock);

  // Certificates (PEM), and the hash of the public key of the first one.
  const std::string& ca() const { return ca_; }
  const std::string& workers_ca() const { return workers_ca_; }
  const std::string& ca_sha256() const { return ca_sha256_; }
  // Their files.
  std::string ca_path() const;
  std::string workers_ca_path() const;

  // A chain for the coordinator's key, own certificate first.
  absl::StatusOr<std::string> SignCoordinator(const std::vector<std::string>& hosts,
                                              const std::string& private_key,
                                              absl::Duration life) const;
  // A chain for a worker, own certificate first.
  absl::StatusOr<std::string> SignWorker(const CertificateRequest& request,
                                         const WorkerIdentity& identity, absl::Duration life) const;

  // Returns whose certificate this is. Unauthenticated unless it is a worker's, signed here, and
  // valid now.
  absl::StatusOr<WorkerIdentity> Identify(const std::string& certificate) const;

 private:
  struct Known {
    WorkerIdentity identity;
    absl::Time not_before, not_after;
  };

  CertificateAuthority(std::string folder, const Clock* clock)
      : folder_(std::move(folder)), clock_(clock) {}
  absl::Status Make() const;
  absl::Status Read();

  const std::string folder_;
  const Clock* const clock_;
  std::string ca_, ca_key_, ca_sha256_, workers_ca_, workers_ca_key_;
  // Verified already, by PEM text: callers show the same ones again and again.
  mutable absl::Mutex mutex_;
  mutable absl::flat_hash_map<std::string, Known> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
