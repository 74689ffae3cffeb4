// Certificates and API keys that are replaced while a daemon runs, as Kubernetes does with secrets:
// by a file in place, or by a link that names another folder.
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

// How long files may lie there unread.
inline constexpr absl::Duration kCredentialCheck = absl::Seconds(2);

// What can be read again.
struct Credential {
  std::string what;                              // for messages, in the plural
  std::string from_now_on;                       // what a change means, likewise
  std::function<absl::StatusOr<bool>()> reload;  // whether there was something new
  std::function<void()> changed;                 // runs after that; null: nothing
};

// Those that a daemon has been given. `changed` runs after each change of the certificates.
std::vector<Credential> CredentialsOf(const TransportSecurity& tls,
                                      const std::optional<ApiKeys>& keys,
                                      std::function<void(const TlsPem&)> changed = nullptr);

// Reloads them every so often, while it lives, on a thread of its own. What is not right twice in a
// row (once it may be half written) is logged, once.
class CredentialWatch {
 public:
  CredentialWatch(std::vector<Credential> credentials, absl::Duration every);
  ~CredentialWatch();

 private:
  struct Watched {
    Credential credential;
    std::string wrong, logged;  // of the last check; of the last warning
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
