#include "server/access/token_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/net/access_token.h"
#include "base/net/api_keys.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "server/store/job_store.h"

namespace espalier {
namespace {

constexpr char kIndex[] = "access-tokens";
constexpr char kToken[] = "access-token/";
constexpr size_t kIdDigits = 12;
constexpr size_t kMostTokens = 10'000;
constexpr int kMostUses = 10'000;
constexpr double kLongestTtl = 366.0 * 24 * 3600;
constexpr size_t kShortestKey = 16, kLongestKey = 128;
// How exactly the store knows when a key was used last: a write for every call would be many.
constexpr absl::Duration kLastUse = absl::Minutes(1);

std::string BlobOf(const std::string& id) { return absl::StrCat(kToken, id); }

bool IsWorkers(const v1::AccessToken& token) {
  return token.roles_size() == 1 && token.roles(0) == "worker";
}

std::string Time(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(unix_ms),
                          absl::UTCTimeZone());
}

absl::Status Refused(const v1::AccessToken& token, absl::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat(
      "the token ", token.id(), " ", why,
      "; a new one: espalier token create --role=", absl::StrJoin(token.roles(), ",")));
}

absl::Status Unknown(absl::string_view id) {
  return absl::UnauthenticatedError(absl::StrCat("the token ", id.substr(0, kIdDigits),
                                                 " is unknown here: it is another coordinator's, "
                                                 "it ended long ago, or its secret is not right"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenStore>> TokenStore::Open(JobStore* store, const Clock* clock) {
  std::unique_ptr<TokenStore> out(new TokenStore(store, clock));
  absl::MutexLock lock(&out->mutex_);
  if (absl::Status s = out->Read(); !s.ok()) return s;
  return out;
}

absl::Status TokenStore::Read() {
  const absl::StatusOr<std::string> index = store_.GetBlob(kIndex);
  if (absl::IsNotFound(index.status())) return absl::OkStatus();
  if (!index.ok()) return index.status();
  for (const absl::string_view id : absl::StrSplit(*index, '\n', absl::SkipEmpty())) {
    const absl::StatusOr<std::string> blob = store_.GetBlob(BlobOf(std::string(id)));
    if (absl::IsNotFound(blob.status())) continue;
    if (!blob.ok()) return blob.status();
    v1::StoredToken token;
    if (!token.ParseFromString(*blob) || token.token().id() != id) {
      return absl::DataLossError(absl::StrCat("the stored token ", id, " is damaged"));
    }
    order_.emplace_back(id);
    tokens_[order_.back()] = std::move(token);
  }
  return absl::OkStatus();
}

absl::Status TokenStore::WriteIndex() {
  return store_.PutBlob(kIndex, absl::StrJoin(order_, "\n"));
}

absl::Status TokenStore::Write(const v1::StoredToken& token) {
  const std::string& id = token.token().id();
  if (absl::Status s = store_.PutBlob(BlobOf(id), token.SerializeAsString()); !s.ok()) return s;
  tokens_[id] = token;
  return absl::OkStatus();
}

// Revoked ones stay until their certificates have ended: after that, nothing can be renewed.
absl::Status TokenStore::Prune() {
  const int64_t now = clock_.NowUnixMillis();
  std::vector<std::string> left, gone;
  for (const std::string& id : order_) {
    const v1::AccessToken& token = tokens_[id].token();
    const bool ended = (token.revoked() || token.expires_unix_ms() <= now) &&
                       token.certificates_until_unix_ms() <= now;
    // A day longer, so that `token list` still shows how it ended.
    const int64_t last = std::max(token.expires_unix_ms(), token.certificates_until_unix_ms());
    (ended && last + absl::ToInt64Milliseconds(absl::Hours(24)) <= now ? gone : left).push_back(id);
  }
  if (gone.empty()) return absl::OkStatus();
  order_ = left;
  if (absl::Status s = WriteIndex(); !s.ok()) return s;
  for (const std::string& id : gone) {
    tokens_.erase(id);
    // What the index does not name is not read.
    if (absl::Status s = store_.PutBlob(BlobOf(id), ""); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenStore::Created> TokenStore::Create(const v1::CreateTokenRequest& request,
                                                       const Caller& maker) {
  const absl::StatusOr<Roles> roles = ParseRoles(absl::StrJoin(request.roles(), ","));
  if (!roles.ok()) return roles.status();
  if (absl::Status s = CheckRolesAndOwner(*roles, request.owner()); !s.ok()) return s;
  const bool workers = *roles == Roles(Role::kWorker);
  if (workers && !request.owner().empty()) {
    return absl::InvalidArgumentError("owner: a worker has none, it works for all");
  }
  if (!(request.ttl_seconds() >= 1 && request.ttl_seconds() <= kLongestTtl)) {
    return absl::InvalidArgumentError("ttl_seconds: 1 second to 366 days");
  }
  if (workers ? request.uses() < 1 || request.uses() > kMostUses : request.uses() != 0) {
    return absl::InvalidArgumentError(
        workers ? absl::StrCat("uses: 1 to ", kMostUses, " workers")
                : "uses: only workers' tokens are counted; others are used for every call");
  }
  const absl::StatusOr<std::string> id = RandomId(), secret = RandomId();
  if (!id.ok()) return id.status();
  if (!secret.ok()) return secret.status();
  const absl::Time now = clock_.Now();
  v1::StoredToken stored;
  stored.set_secret_sha256(Sha256Hex(*secret));
  v1::AccessToken& token = *stored.mutable_token();
  token.set_id(id->substr(0, kIdDigits));
  for (const absl::string_view role : absl::StrSplit(roles->ToString(), ", ")) {
    token.add_roles(std::string(role));
  }
  token.set_owner(request.owner());
  if (token.owner().empty() && !workers && !roles->Intersects(Role::kAdmin)) {
    token.set_owner(absl::StrCat("token-", token.id()));
  }
  token.set_created_unix_ms(absl::ToUnixMillis(now));
  token.set_expires_unix_ms(absl::ToUnixMillis(now + absl::Seconds(request.ttl_seconds())));
  token.set_uses(request.uses());
  token.set_uses_left(request.uses());
  token.set_made_by(maker.owner);
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = Prune(); !s.ok()) return s;
  if (order_.size() >= kMostTokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", kMostTokens, " tokens already; they go when they have expired"));
  }
  if (absl::Status s = Write(stored); !s.ok()) return s;
  order_.push_back(token.id());
  if (absl::Status s = WriteIndex(); !s.ok()) {
    order_.pop_back();
    tokens_.erase(token.id());
    return s;
  }
  return Created{token, *secret};
}

absl::StatusOr<std::vector<v1::AccessToken>> TokenStore::List() {
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = Prune(); !s.ok()) return s;
  std::vector<v1::AccessToken> out;
  for (const std::string& id : order_) out.push_back(tokens_[id].token());
  return out;
}

absl::StatusOr<v1::AccessToken> TokenStore::Revoke(const std::string& id, bool certificates) {
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(id);
  if (found == tokens_.end()) {
    return absl::NotFoundError(
        absl::StrCat("there is no token ", id.substr(0, 100), "; espalier token list shows them"));
  }
  const v1::AccessToken& token = found->second.token();
  if (!token.revoked() || (certificates && !token.certificates_refused())) {
    v1::StoredToken changed = found->second;
    changed.mutable_token()->set_revoked(true);
    if (certificates) changed.mutable_token()->set_certificates_refused(true);
    if (absl::Status s = Write(changed); !s.ok()) return s;
  }
  return tokens_[id].token();
}

absl::StatusOr<const v1::StoredToken*> TokenStore::Find(const std::string& id,
                                                        const std::string& secret) const {
  const auto found = tokens_.find(id);
  // Hashes may be compared in any way: who does not know the secret cannot choose its hash.
  if (found == tokens_.end() || found->second.secret_sha256() != Sha256Hex(secret)) {
    return Unknown(id);
  }
  return &found->second;
}

absl::Status TokenStore::CheckAlive(const v1::AccessToken& token) const {
  if (token.revoked()) return Refused(token, "was revoked");
  if (token.expires_unix_ms() <= clock_.NowUnixMillis()) {
    return Refused(token, absl::StrCat("expired at ", Time(token.expires_unix_ms())));
  }
  return absl::OkStatus();
}

absl::Status TokenStore::Use(const Exchange& exchange) {
  if (exchange.idempotency_key.size() < kShortestKey ||
      exchange.idempotency_key.size() > kLongestKey) {
    return absl::InvalidArgumentError(
        absl::StrCat("idempotency_key: ", kShortestKey, " to ", kLongestKey, " characters"));
  }
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<const v1::StoredToken*> found = Find(exchange.token_id, exchange.secret);
  if (!found.ok()) return found.status();
  v1::StoredToken changed = **found;
  v1::AccessToken& token = *changed.mutable_token();
  if (!IsWorkers(token)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the token ", token.id(), " is for clients (", absl::StrJoin(token.roles(), ", "),
        "), not for workers: espalier token create --role=worker"));
  }
  if (absl::Status s = CheckAlive(token); !s.ok()) return s;
  const std::string key = Sha256Hex(exchange.idempotency_key);
  bool repeated = false;
  for (const v1::StoredToken::Exchange& earlier : changed.exchanges()) {
    const bool same_key = earlier.public_key_sha256() == exchange.public_key_sha256;
    const bool same_request = earlier.key_sha256() == key;
    if (same_key != same_request) {
      return absl::PermissionDeniedError(absl::StrCat(
          "replayed: with the token ", token.id(),
          same_key ? " this certificate request was made before; a worker makes a new key each time"
                   : " this request was made before, for another key"));
    }
    repeated = repeated || same_key;
  }
  if (!repeated) {
    if (token.uses_left() <= 0) {
      return Refused(token, absl::StrCat("is used up: ", token.uses(),
                                         token.uses() == 1 ? " worker has" : " workers have",
                                         " joined with it"));
    }
    token.set_uses_left(token.uses_left() - 1);
    v1::StoredToken::Exchange* use = changed.add_exchanges();
    use->set_key_sha256(key);
    use->set_public_key_sha256(exchange.public_key_sha256);
  }
  token.set_last_used_unix_ms(clock_.NowUnixMillis());
  token.set_certificates_until_unix_ms(
      std::max(token.certificates_until_unix_ms(), absl::ToUnixMillis(exchange.certificate_until)));
  return Write(changed);
}

absl::Status TokenStore::Renew(const std::string& token_id, absl::Time certificate_until) {
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(token_id);
  if (found == tokens_.end()) {
    return absl::PermissionDeniedError(absl::StrCat("the certificate is not renewed: its token ",
                                                    token_id.substr(0, kIdDigits),
                                                    " is not known here any more"));
  }
  v1::StoredToken changed = found->second;
  v1::AccessToken& token = *changed.mutable_token();
  if (token.revoked()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the certificate is not renewed: its token ", token_id, " was revoked"));
  }
  token.set_certificates_until_unix_ms(
      std::max(token.certificates_until_unix_ms(), absl::ToUnixMillis(certificate_until)));
  return Write(changed);
}

absl::Status TokenStore::CheckCertificate(const std::string& token_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(token_id);
  if (found == tokens_.end() || !found->second.token().certificates_refused()) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(absl::StrCat("the certificate is refused: the token ", token_id,
                                                 ", with which this worker joined, was "
                                                 "revoked with all its certificates"));
}

absl::StatusOr<Caller> TokenStore::Identify(const std::string& text) {
  const absl::StatusOr<AccessTokenText> shown = ParseAccessToken(text);
  if (!shown.ok()) return absl::UnauthenticatedError(shown.status().message());
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<const v1::StoredToken*> found = Find(shown->id, shown->secret);
  if (!found.ok()) return found.status();
  const v1::AccessToken& token = (*found)->token();
  if (IsWorkers(token)) {
    return absl::UnauthenticatedError(absl::StrCat(
        "the token ", token.id(),
        " lets workers join, and is no key: espalier-worker --join; for people: espalier token "
        "create --role=train,infer"));
  }
  if (absl::Status s = CheckAlive(token); !s.ok()) return absl::UnauthenticatedError(s.message());
  const absl::StatusOr<Roles> roles = ParseRoles(absl::StrJoin(token.roles(), ","));
  if (!roles.ok()) return absl::UnauthenticatedError(roles.status().message());
  const Caller caller{*roles, token.owner()};
  const int64_t now = clock_.NowUnixMillis();
  if (now - token.last_used_unix_ms() >= absl::ToInt64Milliseconds(kLastUse)) {
    v1::StoredToken changed = **found;
    changed.mutable_token()->set_last_used_unix_ms(now);
    // A disk that is full does not lock anybody out.
    Write(changed).IgnoreError();
  }
  return caller;
}

}  // namespace espalier
