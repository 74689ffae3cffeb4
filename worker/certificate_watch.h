// Certificates that are replaced while a daemon runs, as Kubernetes does with secrets: by a file in
// place, or by a link that names another folder.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/transport_security.h"

namespace espalier {

// How long files may lie there unread.
inline constexpr absl::Duration kCertificateCheck = absl::Seconds(2);

// Reloads `tls` every so often, while it lives, on a thread of its own; none without files. What is
// not right twice in a row (once it may be half written) is logged, once.
class CertificateWatch {
 public:
  // `changed` runs after each reload that brought something new.
  CertificateWatch(TransportSecurity tls, absl::Duration every,
                   std::function<void(const TlsPem&)> changed = nullptr);
  ~CertificateWatch();

 private:
  void Run();
  void Check();

  TransportSecurity tls_;
  const absl::Duration every_;
  const std::function<void(const TlsPem&)> changed_;
  std::string wrong_, logged_;  // of the last check; of the last warning
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
