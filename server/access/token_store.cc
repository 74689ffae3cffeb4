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
// How exactly is known when a key was used last: a write for every call would be many.
constexpr absl::Duration kLastUse = absl::Minutes(1);
// How exactly the store knows until when certificates are valid. Tokens are kept a day longer.
constexpr absl::Duration kCertificates = absl::Hours(1);
constexpr absl::Duration kShownAfterEnd = absl::Hours(24);
constexpr size_t kExchangesOfBlob = 64;

std::string BlobOf(const std::string& id) { return absl::StrCat(kToken, id); }
// Of the exchanges from number * kExchangesOfBlob on.
std::string ExchangesOf(const std::string& id, size_t number) {
  return absl::StrCat(kToken, id, "/exchanges/", number);
}

bool IsWorkers(const v1::AccessToken& token) {
  return token.roles_size() == 1 && token.roles(0) == "worker";
}

std::string Time(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(unix_ms),
                          absl::UTCTimeZone());
}

// Only admins make tokens.
absl::Status Refused(const v1::AccessToken& token, absl::string_view why) {
  const std::string create =
      absl::StrCat("`espalier token create --role=", absl::StrJoin(token.roles(), ","), "`");
  return absl::PermissionDeniedError(absl::StrCat(
      "the token ", token.id(), " ", why, "; ",
      IsWorkers(token)
          ? absl::StrCat("start the worker with --join and a new one, which an admin makes: ",
                         create)
          : absl::StrCat("ask an admin for a new one (", create, "), then `espalier login`")));
}

absl::Status Unknown(absl::string_view id) {
  return absl::UnauthenticatedError(absl::StrCat("the token ", id.substr(0, kIdDigits),
                                                 " is unknown here: it is another coordinator's, "
                                                 "it ended long ago, or its secret is not right"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenStore>> TokenStore::Open(JobStore* store, const Clock* clock) {
  std::unique_ptr<TokenStore> out(new TokenStore(store, clock));
  const absl::StatusOr<std::string> index = store->GetBlob(kIndex);
  if (absl::IsNotFound(index.status())) return out;
  if (!index.ok()) return index.status();
  absl::MutexLock lock(&out->mutex_);
  for (const absl::string_view id : absl::StrSplit(*index, '\n', absl::SkipEmpty())) {
    if (absl::Status s = out->Read(std::string(id)); !s.ok()) return s;
  }
  return out;
}

absl::Status TokenStore::Read(const std::string& id) {
  const auto damaged = [&] {
    return absl::DataLossError(absl::StrCat("the stored token ", id, " is damaged"));
  };
  const absl::StatusOr<std::string> blob = store_.GetBlob(BlobOf(id));
  if (absl::IsNotFound(blob.status())) return absl::OkStatus();
  if (!blob.ok()) return blob.status();
  Known known;
  if (!known.stored.ParseFromString(*blob) || known.stored.token().id() != id) return damaged();
  // Earlier releases kept them in the token.
  known.exchanges.assign(known.stored.exchanges().begin(), known.stored.exchanges().end());
  known.stored.clear_exchanges();
  bool more = known.exchanges.empty() && known.stored.token().uses() > 0;
  for (size_t number = 0; more; ++number) {
    const absl::StatusOr<std::string> exchanges = store_.GetBlob(ExchangesOf(id, number));
    if (absl::IsNotFound(exchanges.status())) break;
    if (!exchanges.ok()) return exchanges.status();
    v1::StoredToken some;
    if (!some.ParseFromString(*exchanges)) return damaged();
    known.exchanges.insert(known.exchanges.end(), some.exchanges().begin(), some.exchanges().end());
    known.written = known.exchanges.size();
    more = static_cast<size_t>(some.exchanges_size()) == kExchangesOfBlob;
  }
  // A coordinator may have ended after it wrote an exchange, and before the token.
  v1::AccessToken& token = *known.stored.mutable_token();
  if (token.uses() > 0) {
    token.set_uses_left(std::max(0, token.uses() - static_cast<int32_t>(known.exchanges.size())));
  }
  known.certificates_until_ms = token.certificates_until_unix_ms();
  order_.push_back(id);
  tokens_[id] = std::move(known);
  return absl::OkStatus();
}

absl::Status TokenStore::WriteIndex(const std::vector<std::string>& ids) {
  return store_.PutBlob(kIndex, absl::StrJoin(ids, "\n"));
}

absl::Status TokenStore::Write(Known changed) {
  const std::string id = changed.stored.token().id();
  while (changed.written < changed.exchanges.size()) {
    const size_t number = changed.written / kExchangesOfBlob;
    const size_t end = std::min(changed.exchanges.size(), (number + 1) * kExchangesOfBlob);
    v1::StoredToken some;
    for (size_t i = number * kExchangesOfBlob; i < end; ++i) {
      *some.add_exchanges() = changed.exchanges[i];
    }
    absl::Status s = store_.PutBlob(ExchangesOf(id, number), some.SerializeAsString());
    if (!s.ok()) return s;
    changed.written = end;
  }
  changed.used = false;
  changed.certificates_until_ms = changed.stored.token().certificates_until_unix_ms();
  if (absl::Status s = store_.PutBlob(BlobOf(id), changed.stored.SerializeAsString()); !s.ok()) {
    return s;
  }
  absl::MutexLock lock(&mutex_);
  Known& known = tokens_[id];
  // It may have been used meanwhile.
  v1::AccessToken& token = *changed.stored.mutable_token();
  if (known.stored.token().last_used_unix_ms() > token.last_used_unix_ms()) {
    token.set_last_used_unix_ms(known.stored.token().last_used_unix_ms());
    changed.used = true;
  }
  known = std::move(changed);
  return absl::OkStatus();
}

absl::Status TokenStore::Forget(const std::string& id, size_t exchanges) {
  for (size_t at = 0; at < exchanges; at += kExchangesOfBlob) {
    absl::Status s = store_.DeleteBlob(ExchangesOf(id, at / kExchangesOfBlob));
    if (!s.ok()) return s;
  }
  return store_.DeleteBlob(BlobOf(id));
}

// Revoked ones stay until their certificates have ended: after that, nothing can be renewed.
absl::Status TokenStore::Prune() {
  const int64_t now = clock_.NowUnixMillis();
  std::vector<std::string> left;
  std::map<std::string, size_t> gone;  // and their exchanges
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& id : order_) {
      const Known& known = tokens_[id];
      const v1::AccessToken& token = known.stored.token();
      const bool ended = (token.revoked() || token.expires_unix_ms() <= now) &&
                         token.certificates_until_unix_ms() <= now;
      // A day longer, so that `token list` still shows how it ended.
      const int64_t last = std::max(token.expires_unix_ms(), token.certificates_until_unix_ms());
      if (ended && last + absl::ToInt64Milliseconds(kShownAfterEnd) <= now) {
        gone[id] = known.exchanges.size();
      } else {
        left.push_back(id);
      }
    }
  }
  if (gone.empty()) return absl::OkStatus();
  // What the index does not name is not read.
  if (absl::Status s = WriteIndex(left); !s.ok()) return s;
  {
    absl::MutexLock lock(&mutex_);
    order_ = left;
    for (const auto& [id, exchanges] : gone) tokens_.erase(id);
  }
  for (const auto& [id, exchanges] : gone) {
    if (absl::Status s = Forget(id, exchanges); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void TokenStore::WriteLastUses() {
  absl::MutexLock write(&write_mutex_);
  std::vector<Known> used;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, known] : tokens_) {
      if (known.used) used.push_back(known);
    }
  }
  // What cannot be written now is written another time.
  for (Known& known : used) Write(std::move(known)).IgnoreError();
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
  absl::MutexLock write(&write_mutex_);
  if (absl::Status s = Prune(); !s.ok()) return s;
  std::vector<std::string> ids;
  {
    absl::MutexLock lock(&mutex_);
    ids = order_;
  }
  if (ids.size() >= kMostTokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", kMostTokens, " tokens already; they go when they have expired"));
  }
  if (absl::Status s = Write({.stored = stored}); !s.ok()) return s;
  ids.push_back(token.id());
  const absl::Status named = WriteIndex(ids);
  absl::MutexLock lock(&mutex_);
  if (!named.ok()) {
    tokens_.erase(token.id());
    return named;
  }
  order_ = std::move(ids);
  return Created{token, *secret};
}

absl::StatusOr<std::vector<v1::AccessToken>> TokenStore::List() {
  absl::MutexLock write(&write_mutex_);
  if (absl::Status s = Prune(); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  std::vector<v1::AccessToken> out;
  for (const std::string& id : order_) out.push_back(tokens_[id].stored.token());
  return out;
}

absl::StatusOr<v1::AccessToken> TokenStore::Revoke(const std::string& id, bool certificates) {
  absl::MutexLock write(&write_mutex_);
  Known changed;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = tokens_.find(id);
    if (found == tokens_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no token ", id.substr(0, 100),
                                              "; espalier token list shows them"));
    }
    changed = found->second;
  }
  v1::AccessToken& token = *changed.stored.mutable_token();
  if (token.revoked() && (!certificates || token.certificates_refused())) return token;
  token.set_revoked(true);
  if (certificates) token.set_certificates_refused(true);
  v1::AccessToken revoked = token;
  if (absl::Status s = Write(std::move(changed)); !s.ok()) return s;
  return revoked;
}

absl::StatusOr<const TokenStore::Known*> TokenStore::Find(const std::string& id,
                                                          const std::string& secret) const {
  const auto found = tokens_.find(id);
  // Hashes may be compared in any way: who does not know the secret cannot choose its hash.
  if (found == tokens_.end() || found->second.stored.secret_sha256() != Sha256Hex(secret)) {
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
  absl::MutexLock write(&write_mutex_);
  Known changed;
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<const Known*> found = Find(exchange.token_id, exchange.secret);
    if (!found.ok()) return found.status();
    changed = **found;
  }
  v1::AccessToken& token = *changed.stored.mutable_token();
  if (!IsWorkers(token)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the token ", token.id(), " is for clients (", absl::StrJoin(token.roles(), ", "),
        "), not for workers: espalier token create --role=worker"));
  }
  if (absl::Status s = CheckAlive(token); !s.ok()) return s;
  const std::string key = Sha256Hex(exchange.idempotency_key);
  bool repeated = false;
  for (const v1::StoredToken::Exchange& earlier : changed.exchanges) {
    const bool same_key = earlier.public_key_sha256() == exchange.public_key_sha256;
    const bool same_request = earlier.key_sha256() == key;
    if (same_key != same_request) {
      return absl::PermissionDeniedError(
          absl::StrCat("replayed: with the token ", token.id(),
                       same_key ? " a certificate was asked for this key before, by another request"
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
    v1::StoredToken::Exchange& use = changed.exchanges.emplace_back();
    use.set_key_sha256(key);
    use.set_public_key_sha256(exchange.public_key_sha256);
  }
  token.set_last_used_unix_ms(clock_.NowUnixMillis());
  token.set_certificates_until_unix_ms(
      std::max(token.certificates_until_unix_ms(), absl::ToUnixMillis(exchange.certificate_until)));
  return Write(std::move(changed));
}

absl::Status TokenStore::Renew(const std::string& token_id, absl::Time certificate_until) {
  absl::MutexLock write(&write_mutex_);
  Known changed;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = tokens_.find(token_id);
    if (found == tokens_.end()) {
      return absl::PermissionDeniedError(absl::StrCat("the certificate is not renewed: its token ",
                                                      token_id.substr(0, kIdDigits),
                                                      " is not known here any more"));
    }
    Known& known = found->second;
    v1::AccessToken& token = *known.stored.mutable_token();
    if (token.revoked()) {
      return absl::PermissionDeniedError(
          absl::StrCat("the certificate is not renewed: its token ", token_id, " was revoked"));
    }
    const int64_t until =
        std::max(token.certificates_until_unix_ms(), absl::ToUnixMillis(certificate_until));
    if (until - known.certificates_until_ms < absl::ToInt64Milliseconds(kCertificates)) {
      token.set_certificates_until_unix_ms(until);
      return absl::OkStatus();
    }
    changed = known;
    changed.stored.mutable_token()->set_certificates_until_unix_ms(until);
  }
  return Write(std::move(changed));
}

absl::Status TokenStore::CheckCertificate(const std::string& token_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(token_id);
  if (found == tokens_.end() || !found->second.stored.token().certificates_refused()) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate is refused: the token ", token_id,
                   ", with which this worker joined, was "
                   "revoked with all its certificates; end the worker, or start it "
                   "again with --join=TOKEN and a new one"));
}

absl::StatusOr<Caller> TokenStore::Identify(const std::string& text) {
  const absl::StatusOr<AccessTokenText> shown = ParseAccessToken(text);
  if (!shown.ok()) return absl::UnauthenticatedError(shown.status().message());
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<const Known*> found = Find(shown->id, shown->secret);
  if (!found.ok()) return found.status();
  const v1::AccessToken& token = (*found)->stored.token();
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
    Known& used = tokens_[shown->id];
    used.stored.mutable_token()->set_last_used_unix_ms(now);
    used.used = true;
  }
  return caller;
}

}  // namespace espalier
