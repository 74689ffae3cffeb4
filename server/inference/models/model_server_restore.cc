// Restores the models served before a restart: listed at once, loaded one at a time, retried on
// failure.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "server/inference/models/model_server.h"

namespace espalier {
namespace {

// For a load that is nearly done.
constexpr absl::Duration kLoadingGracePeriod = absl::Seconds(1);

}  // namespace

ModelServer::~ModelServer() {
  Stop();
  if (restorer_.joinable()) restorer_.join();
}

absl::Status ModelServer::LoadServedList() {
  absl::StatusOr<std::vector<v1::ServeModelRequest>> served = options_.store->Served();
  if (!served.ok()) return served.status();
  absl::MutexLock lock(&mutex_);
  for (v1::ServeModelRequest& request : *served) {
    // Records of earlier releases have no versions. An error is reported when it is loaded.
    if (request.versions().empty()) PinArtifacts(&request).IgnoreError();
    const std::string name = request.name();
    models_[name].request = std::move(request);
  }
  return absl::OkStatus();
}

void ModelServer::StartRestoring() {
  restorer_ = std::thread([this] {
    std::string name;
    while (WaitForNextRetry(&name) && Restore(name)) {
    }
  });
}

bool ModelServer::restored() const {
  absl::MutexLock lock(&mutex_);
  return std::all_of(models_.begin(), models_.end(), [](const auto& model) {
    return model.second.model != nullptr || !model.second.failure.ok();
  });
}

bool ModelServer::WaitForNextRetry(std::string* name) {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    const Entry* next = nullptr;
    for (const auto& [known, entry] : models_) {
      if (entry.model != nullptr || (next != nullptr && entry.next_retry >= next->next_retry))
        continue;
      next = &entry;
      *name = known;
    }
    if (next == nullptr || draining_) return false;
    if (next->next_retry <= absl::Now()) return true;
    mutex_.AwaitWithDeadline(absl::Condition(&draining_), next->next_retry);
  }
}

bool ModelServer::Restore(const std::string& name) {
  // Not stopping: another caller served and unserved it, and a request still holds it.
  if (!AcquireLoadSlot(name).ok()) return !draining();
  const absl::Cleanup load_slot = [this] { ReleaseLoadSlot(); };
  v1::ServeModelRequest request;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = models_.find(name);
    // Unserved or served by another caller meanwhile.
    if (it == models_.end() || it->second.model != nullptr) return true;
    request = it->second.request;
    loading_name_ = name;
  }
  const absl::Status status = Admit(&request, /*restores=*/true).status();
  if (status.ok()) {
    spdlog::info("model {} is served again", name);
  } else if (absl::IsAborted(status)) {
    spdlog::info("{}", std::string(status.message()));
  } else {
    spdlog::error("model {} is not served: {}", name, status.ToString());
  }
  return true;
}

void ModelServer::RecordFailure(const absl::Status& status, Entry* entry) const {
  entry->failure = status;
  entry->backoff = std::clamp(2 * entry->backoff, options_.initial_backoff, options_.max_backoff);
  entry->next_retry = absl::Now() + entry->backoff;
}

bool ModelServer::WaitForLoading() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !loading_; };
  return mutex_.AwaitWithTimeout(absl::Condition(&over), kLoadingGracePeriod);
}

void ModelServer::Stop() {
  std::map<std::string, Entry> last;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    loading_name_.clear();
    last.swap(models_);
  }
  if (options_.metrics != nullptr) {  // the metrics hold them, too
    for (const auto& [name, entry] : last) options_.metrics->Remove(name);
  }
}

}  // namespace espalier
