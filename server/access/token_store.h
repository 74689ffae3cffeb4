// The tokens that give workers and people access (proto/espalier/v1/access.proto). They outlive the
// coordinator's process, in its store, which has only a hash of each secret.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/caller.h"
#include "espalier/v1/access.pb.h"

namespace espalier {

class JobStore;

// Thread-safe.
class TokenStore {
 public:
  // Both must outlive this.
  static absl::StatusOr<std::unique_ptr<TokenStore>> Open(JobStore* store, const Clock* clock);

  struct Created {
    v1::AccessToken token;
    std::string secret;  // 32 hexadecimal digits; kept nowhere
  };
  // Errors are those of Access.CreateToken.
  absl::StatusOr<Created> Create(const v1::CreateTokenRequest& request, const Caller& maker);
  // In the order of creation. Forgets tokens that have ended, if no certificate of theirs is valid.
  absl::StatusOr<std::vector<v1::AccessToken>> List();
  // `certificates`: also refuses the certificates that workers got for it.
  absl::StatusOr<v1::AccessToken> Revoke(const std::string& id, bool certificates = false);

  // A worker's exchange of its token for a certificate.
  struct Exchange {
    std::string token_id, secret;
    std::string idempotency_key;
    std::string public_key_sha256;
    absl::Time certificate_until;
  };
  // Counts a use: durable once this returns. A repetition of a counted one is allowed as long as
  // the token has not expired and was not revoked, and is not counted again. Unauthenticated for an
  // unknown token or another secret; PermissionDenied, with the reason, for what is not allowed.
  absl::Status Use(const Exchange& exchange);
  // Whether a certificate that was given for this token may be renewed. PermissionDenied if not.
  absl::Status Renew(const std::string& token_id, absl::Time certificate_until);

  // Writes when people's tokens were used last, which Identify notes in memory only. Call now and
  // then.
  void WriteLastUses();

  // This and Identify never wait for the store: workers' heartbeats come through them.
  // Unauthenticated if certificates of this token are refused.
  absl::Status CheckCertificate(const std::string& token_id);

  // Returns who shows a token with roles other than worker. Unauthenticated if it is unknown, has
  // expired, was revoked, or is a worker's, which must be exchanged first.
  absl::StatusOr<Caller> Identify(const std::string& text);

 private:
  TokenStore(JobStore* store, const Clock* clock) : store_(*store), clock_(*clock) {}

  // The exchanges are kept apart from the token, some in each blob, so that a use of a token of
  // many uses writes little.
  struct Known {
    v1::StoredToken stored;  // without exchanges
    std::vector<v1::StoredToken::Exchange> exchanges;
    size_t written = 0;                 // of the exchanges
    int64_t certificates_until_ms = 0;  // as the store has it
    bool used = false;                  // since it was written
  };

  absl::Status Read(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteIndex(const std::vector<std::string>& ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  // Writes a token, and has it in memory only then.
  absl::Status Write(Known changed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Prune() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Forget(const std::string& id, size_t exchanges)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::StatusOr<const Known*> Find(const std::string& id, const std::string& secret) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // That it is neither revoked nor expired.
  absl::Status CheckAlive(const v1::AccessToken& token) const;

  JobStore& store_;
  const Clock& clock_;
  absl::Mutex write_mutex_;  // one change at a time; held while the store writes
  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(write_mutex_);  // never held while the store writes
  std::vector<std::string> order_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Known> tokens_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
