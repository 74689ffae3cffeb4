#include "worker/collective/resolve_hosts.h"

#include <sys/socket.h>

#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace espalier {
namespace {

// Shared with the threads: the last one that uses it frees it.
struct Results {
  absl::Mutex mutex;
  std::vector<std::optional<absl::StatusOr<Addresses>>> done ABSL_GUARDED_BY(mutex);
  size_t missing ABSL_GUARDED_BY(mutex) = 0;

  bool Complete() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return missing == 0; }
};

}  // namespace

absl::StatusOr<Addresses> ResolveHost(const HostPort& wanted, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(wanted.host.c_str(), wanted.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("host '", wanted.host, "': ", gai_strerror(error)));
  }
  return Addresses(found, &freeaddrinfo);
}

std::vector<absl::StatusOr<Addresses>> ResolveHosts(const std::vector<HostPort>& wanted,
                                                    absl::Time deadline, const Resolver& resolve) {
  const auto results = std::make_shared<Results>();
  absl::MutexLock lock(&results->mutex);
  results->done.resize(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    // Needs no name server.
    absl::StatusOr<Addresses> numeric = resolve(wanted[i], AI_NUMERICHOST | AI_NUMERICSERV);
    if (numeric.ok()) {
      results->done[i] = std::move(numeric);
      continue;
    }
    ++results->missing;
    std::thread([results, resolve, i, host = wanted[i]] {
      absl::StatusOr<Addresses> found = resolve(host, AI_NUMERICSERV);
      absl::MutexLock lock(&results->mutex);
      results->done[i] = std::move(found);
      --results->missing;
    }).detach();
  }
  results->mutex.AwaitWithDeadline(absl::Condition(results.get(), &Results::Complete), deadline);
  std::vector<absl::StatusOr<Addresses>> out;
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::optional<absl::StatusOr<Addresses>>& found = results->done[i];
    out.push_back(found.has_value() ? *std::move(found)
                                    : absl::DeadlineExceededError(absl::StrCat(
                                          "host '", wanted[i].host, "': no name server answers")));
  }
  return out;
}

}  // namespace espalier
