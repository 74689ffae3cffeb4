#include "base/net/credential_watch.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace espalier {

std::vector<Credential> CredentialsOf(const TransportSecurity& tls,
                                      const std::optional<ApiKeys>& keys,
                                      std::function<void(const TlsPem&)> changed) {
  std::vector<Credential> out;
  if (tls.serves() || tls.calls()) {
    Credential certificates{.what = "certificates", .from_now_on = "new connections use them"};
    certificates.reload = [tls = TransportSecurity(tls)]() mutable { return tls.Reload(); };
    if (changed) certificates.changed = [tls, changed] { changed(tls.pem()); };
    out.push_back(std::move(certificates));
  }
  if (keys.has_value()) {
    out.push_back({.what = "API keys",
                   .from_now_on = "new calls use them",
                   .reload = [keys = ApiKeys(*keys)]() mutable { return keys.Reload(); }});
  }
  return out;
}

CredentialWatch::CredentialWatch(std::vector<Credential> credentials, absl::Duration every)
    : every_(every) {
  for (Credential& credential : credentials) watched_.push_back({std::move(credential), "", ""});
  if (!watched_.empty()) thread_ = std::thread([this] { Run(); });
}

CredentialWatch::~CredentialWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void CredentialWatch::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), every_)) return;
    }
    for (Watched& watched : watched_) Check(watched);
  }
}

void CredentialWatch::Check(Watched& watched) {
  const Credential& credential = watched.credential;
  const absl::StatusOr<bool> changed = credential.reload();
  const std::string wrong(changed.status().message());
  const bool again = wrong == std::exchange(watched.wrong, wrong);
  if (changed.ok()) {
    watched.logged.clear();
    if (!*changed) return;
    spdlog::info("{} reloaded: {}", credential.what, credential.from_now_on);
    if (credential.changed) credential.changed();
  } else if (again && wrong != watched.logged) {
    watched.logged = wrong;
    spdlog::warn("{}; the {} read before stay in use", wrong, credential.what);
  }
}

}  // namespace espalier
