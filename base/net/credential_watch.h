// Reloads certificates and API keys that change while a daemon runs, in place or through a symbolic
// link as Kubernetes secrets do.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/net/api_keys.h"
#include "base/net/transport_security.h"

namespace espalier {

// Interval between checks of the files.
inline constexpr absl::Duration kCredentialCheck = absl::Seconds(2);

// A reloadable credential.
struct Credential {
  std::string what;                              // for log messages, plural
  std::string from_now_on;                       // for log messages: the effect of a change
  std::function<absl::StatusOr<bool>()> reload;  // true if it changed
  std::function<void()> changed;                 // called after a change; may be null
};

// Returns a daemon's credentials. `changed` runs after each change of the certificates.
std::vector<Credential> CredentialsOf(const TransportSecurity& tls,
                                      const std::optional<ApiKeys>& keys,
                                      std::function<void(const TlsPem&)> changed = nullptr);

// Reloads credentials periodically on its own thread. Logs an error once, when two checks in a row
// fail (a file may be half written at the first).
class CredentialWatch {
 public:
  CredentialWatch(std::vector<Credential> credentials, absl::Duration every);
  ~CredentialWatch();

 private:
  struct Watched {
    Credential credential;
    std::string wrong, logged;  // error of the last check; last logged
  };

  void Run();
  static void Check(Watched& watched);

  std::vector<Watched> watched_;
  const absl::Duration every_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
