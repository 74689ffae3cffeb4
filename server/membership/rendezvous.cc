#include "server/membership/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

absl::Status Over(const std::string& job_id, uint64_t attempt) {
  return absl::FailedPreconditionError(
      absl::StrCat("attempt ", attempt, " of job ", job_id, " is over or was never begun"));
}

}  // namespace

void Rendezvous::Begin(const std::string& job_id, uint64_t attempt) {
  End(job_id);
  absl::MutexLock lock(&mutex_);
  auto key_space = std::make_shared<KeySpace>();
  key_space->attempt = attempt;
  key_spaces_[job_id] = std::move(key_space);
}

void Rendezvous::End(const std::string& job_id, std::optional<uint64_t> attempt) {
  absl::MutexLock lock(&mutex_);
  auto it = key_spaces_.find(job_id);
  if (it == key_spaces_.end() || it->second->attempt != attempt.value_or(it->second->attempt))
    return;
  it->second->over = true;
  key_spaces_.erase(it);
  changed_.SignalAll();
}

void Rendezvous::EndAll() {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, key_space] : key_spaces_) key_space->over = true;
  key_spaces_.clear();
  changed_.SignalAll();
}

absl::StatusOr<std::shared_ptr<Rendezvous::KeySpace>> Rendezvous::Find(const std::string& job_id,
                                                                       uint64_t attempt) {
  auto it = key_spaces_.find(job_id);
  if (it == key_spaces_.end() || it->second->attempt != attempt) return Over(job_id, attempt);
  return it->second;
}

absl::Status Rendezvous::CheckCurrent(const std::string& job_id, uint64_t attempt) {
  absl::MutexLock lock(&mutex_);
  return Find(job_id, attempt).status();
}

absl::Status Rendezvous::Set(const std::string& job_id, uint64_t attempt, const std::string& key,
                             const std::string& value) {
  if (value.size() > limits_.max_value_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("key '", key, "': a value of ", value.size(),
                                                   " bytes; at most ", limits_.max_value_bytes));
  }
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::shared_ptr<KeySpace>> key_space = Find(job_id, attempt);
  if (!key_space.ok()) return key_space.status();
  if ((*key_space)->values.size() >= limits_.max_keys && (*key_space)->values.count(key) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attempt ", attempt, " of job ", job_id, " has ", limits_.max_keys, " keys"));
  }
  (*key_space)->values[key] = value;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> Rendezvous::Get(const std::string& job_id,
                                                           uint64_t attempt, const std::string& key,
                                                           absl::Duration timeout,
                                                           const std::function<bool()>& cancelled) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::shared_ptr<KeySpace>> found = Find(job_id, attempt);
  if (!found.ok()) return found.status();
  const std::shared_ptr<KeySpace> key_space = *found;
  while (true) {
    if (key_space->over) return Over(job_id, attempt);
    auto it = key_space->values.find(key);
    if (it != key_space->values.end()) return std::optional<std::string>(it->second);
    const absl::Time now = absl::Now();
    if (now >= deadline) return std::optional<std::string>();
    if (cancelled && cancelled()) return absl::CancelledError("the caller has gone");
    changed_.WaitWithDeadline(&mutex_, std::min(deadline, now + absl::Milliseconds(100)));
  }
}

}  // namespace espalier
