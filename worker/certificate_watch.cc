#include "worker/certificate_watch.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace espalier {

CertificateWatch::CertificateWatch(TransportSecurity tls, absl::Duration every,
                                   std::function<void(const TlsPem&)> changed)
    : tls_(std::move(tls)), every_(every), changed_(std::move(changed)) {
  if (tls_.serves() || tls_.calls()) thread_ = std::thread([this] { Run(); });
}

CertificateWatch::~CertificateWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void CertificateWatch::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), every_)) return;
    }
    Check();
  }
}

void CertificateWatch::Check() {
  const absl::StatusOr<bool> changed = tls_.Reload();
  const std::string wrong(changed.status().message());
  const bool again = wrong == std::exchange(wrong_, wrong);
  if (changed.ok()) {
    logged_.clear();
    if (!*changed) return;
    spdlog::info("certificates reloaded: new connections use them");
    if (changed_) changed_(tls_.pem());
  } else if (again && wrong != logged_) {
    logged_ = wrong;
    spdlog::warn("{}; the certificates read before stay in use", wrong);
  }
}

}  // namespace espalier
