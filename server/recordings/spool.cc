#include "server/recordings/spool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/thread_priority.h"
#include "server/recordings/recording_store.h"

namespace espalier {

Spool::Spool(SpoolOptions options)
    : options_(std::move(options)), backoff_(options_.first_retry, options_.longest_retry) {}

Spool::~Spool() { Stop(); }

void Spool::Start() {
  spdlog::info("recorded checkpoints are copied to {}", options_.url);
  thread_ = std::thread([this] { Run(); });
}

void Spool::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Spool::Changed(const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  waiting_.insert(job_id);
  changed_.SignalAll();
}

void Spool::RemoveDeleted() {
  absl::MutexLock lock(&mutex_);
  deletions_ = true;
  changed_.SignalAll();
}

bool Spool::Await(absl::Time pause_until) {
  while (!stop_ && absl::Now() < pause_until) changed_.WaitWithDeadline(&mutex_, pause_until);
  while (!stop_ && waiting_.empty() && !deletions_ && all_found_) changed_.Wait(&mutex_);
  return !stop_;
}

void Spool::Run() {
  LowerThreadPriority();
  absl::Time pause_until = absl::InfinitePast();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!Await(pause_until)) return;
    }
    const absl::Status status = Pass();
    if (stopped()) return;
    if (status.ok()) {
      backoff_.Reset();
      continue;
    }
    options_.observer->OnSpoolError();
    const absl::Duration pause = backoff_.Take();
    spdlog::warn("spool {}: {}; next try in {}", options_.url, absl::CHexEscape(status.message()),
                 absl::FormatDuration(pause));
    pause_until = absl::Now() + pause;
  }
}

absl::Status Spool::Pass() {
  if (absl::Status s = FindJobs(); !s.ok()) return s;
  std::set<std::string> jobs;
  bool deletions = false;
  {
    absl::MutexLock lock(&mutex_);
    jobs.swap(waiting_);
    deletions = std::exchange(deletions_, false);
  }
  absl::Status status = options_.check ? options_.check() : absl::OkStatus();
  if (deletions) {
    if (status.ok()) status = RemoveCopies();
    if (!status.ok()) RemoveDeleted();
  }
  for (const std::string& job : jobs) {
    if (absl::Status s = CopyJob(job, status); !s.ok()) {
      status = s;
      Changed(job);
    }
  }
  return status;
}

absl::Status Spool::FindJobs() {
  if (all_found_) return absl::OkStatus();
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = options_.store->List("");
  if (!objects.ok()) return objects.status();
  absl::MutexLock lock(&mutex_);
  for (const ObjectReader::Object& object : *objects) {
    waiting_.insert(object.name.substr(0, object.name.find('/')));
  }
  all_found_ = true;
  return absl::OkStatus();
}

absl::Status Spool::RemoveCopies() {
  const absl::StatusOr<std::vector<std::string>> deleted = options_.index->DeletedOf(options_.url);
  if (!deleted.ok()) return deleted.status();
  for (const std::string& job : *deleted) {
    if (stopped()) return absl::CancelledError("the spool stops");
    absl::Status status = options_.spool->Delete(job);
    if (status.ok()) status = options_.index->Removed(job, options_.url);
    if (!status.ok()) return status;
    SetPending(job, 0);
    recorded_.erase(job);
    failed_.erase(job);
    std::erase_if(copied_, [&](const auto& file) {
      return file.first.compare(0, job.size() + 1, absl::StrCat(job, "/")) == 0;
    });
    spdlog::info("spool {}: the copies of the deleted job {} are removed", options_.url, job);
  }
  return absl::OkStatus();
}

absl::Status Spool::Recorded(const std::string& job_id, bool* recorded) {
  const auto known = recorded_.find(job_id);
  if (known != recorded_.end()) {
    *recorded = known->second;
    return absl::OkStatus();
  }
  const absl::StatusOr<JobRecord> job = options_.jobs->Get(job_id);
  if (!job.ok() && !absl::IsNotFound(job.status())) return job.status();
  *recorded = recorded_[job_id] = job.ok() && IsRecorded(job->job.spec());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredCheckpoints::Checkpoint>> Spool::Missing(
    const std::string& job_id) {
  bool recorded = false;
  std::vector<StoredCheckpoints::Checkpoint> missing;
  if (absl::Status s = Recorded(job_id, &recorded); !s.ok()) return s;
  if (!recorded) return missing;
  const absl::StatusOr<StoredCheckpoints> stored = ListStoredCheckpoints(*options_.store, job_id);
  if (!stored.ok()) return stored.status();
  const absl::StatusOr<std::vector<v1::RecordedCheckpoint>> copies =
      options_.index->CopiesOf(job_id);
  if (!copies.ok()) return copies.status();
  std::set<std::string> there;
  for (const v1::RecordedCheckpoint& copy : *copies) {
    if (copy.spool() == options_.url) there.insert(copy.directory());
  }
  for (const StoredCheckpoints::Checkpoint& checkpoint : stored->checkpoints) {
    if (there.contains(checkpoint.directory)) continue;
    if (!damaged_.contains(JoinPath(job_id, checkpoint.directory))) missing.push_back(checkpoint);
  }
  return missing;
}

absl::Status Spool::CopyJob(const std::string& job_id, absl::Status usable) {
  if (stopped()) return absl::CancelledError("the spool stops");
  const auto missing = Missing(job_id);
  if (!missing.ok()) return missing.status();
  absl::Status status = missing->empty() ? absl::OkStatus() : std::move(usable);
  size_t done = 0;
  for (; status.ok() && done < missing->size(); ++done) {
    SetPending(job_id, static_cast<int64_t>(missing->size() - done));
    status =
        stopped() ? absl::CancelledError("the spool stops") : CopyOne(job_id, (*missing)[done]);
    if (!status.ok()) break;
  }
  SetPending(job_id, static_cast<int64_t>(missing->size() - done));
  if (absl::IsCancelled(status)) return status;
  if (status.ok() && failed_.erase(job_id) > 0) {
    options_.observer->OnSpoolRecovered(
        job_id, absl::StrCat("all checkpoints are copied to ", options_.url, " now"));
  }
  if (status.ok() && !missing->empty()) options_.observer->OnJobSpooled(job_id);
  if (!status.ok() && failed_.insert(job_id).second) {
    options_.observer->OnSpoolFailed(
        job_id, absl::StrCat("checkpoints cannot be copied to ", options_.url, ": ",
                             status.message(), "; training goes on, and it is tried again"));
  }
  return status;
}

absl::Status Spool::CopyOne(const std::string& job_id,
                            const StoredCheckpoints::Checkpoint& checkpoint) {
  const std::string folder = JoinPath(job_id, checkpoint.directory);
  CopyOptions options;
  options.compress = true;
  options.stopped = [this] { return stopped(); };
  const absl::StatusOr<CopiedCheckpoint> copied =
      CopyCheckpoint(*options_.store, folder, *options_.spool, folder, options, &copied_);
  if (!copied.ok()) {
    // It may have been removed to make room.
    const bool gone = absl::IsNotFound(ReadManifest(*options_.store, folder).status());
    if (gone) return absl::OkStatus();
    if (!absl::IsDataLoss(copied.status())) return copied.status();
    damaged_.insert(folder);
    options_.observer->OnSpoolFailed(
        job_id, absl::StrCat("the checkpoint of step ", checkpoint.steps_done, " is not copied to ",
                             options_.url, ": ", copied.status().message()));
    return absl::OkStatus();
  }
  v1::RecordedCheckpoint copy;
  copy.set_steps_done(copied->steps_done);
  copy.set_directory(checkpoint.directory);
  copy.set_bytes(copied->bytes);
  copy.set_spooled(true);
  copy.set_spool(options_.url);
  const absl::Status added = options_.index->Add(job_id, copy);
  if (absl::IsNotFound(added)) {  // deleted meanwhile
    RemoveDeleted();
    return absl::OkStatus();
  }
  if (added.ok()) options_.observer->OnSpooled(copied->copied_bytes);
  return added;
}

void Spool::SetPending(const std::string& job_id, int64_t checkpoints) {
  if (checkpoints > 0) {
    pending_[job_id] = checkpoints;
  } else {
    pending_.erase(job_id);
  }
  int64_t all = 0;
  for (const auto& [job, number] : pending_) all += number;
  options_.observer->OnSpoolPending(all);
}

absl::Status Spool::Fetch(const std::string& folder, const std::string& to,
                          const std::function<bool()>& stopped) {
  if (options_.check) {
    if (absl::Status s = options_.check(); !s.ok()) return s;
  }
  CopyOptions options;
  options.stopped = stopped;
  return CopyCheckpoint(*options_.spool, folder, *options_.store, to, options, nullptr).status();
}

}  // namespace espalier
