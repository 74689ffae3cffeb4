// What stays of the recordings of JobRunner's jobs: their checkpoints, within the limits.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/states.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/job_message.h"
#include "server/jobs/job_runner.h"
#include "server/recordings/recording_store.h"
#include "server/recordings/stored_checkpoints.h"

namespace espalier {
namespace {

std::string FormatSize(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.4g MiB", mib) : absl::StrFormat("%.4g GiB", mib / 1024);
}

// The checkpoints of a job's record, without those that it does not know.
std::vector<StoredCheckpoints::Checkpoint> KnownTo(StoredCheckpoints stored,
                                                   int64_t checkpoint_step) {
  std::erase_if(stored.checkpoints, [&](const StoredCheckpoints::Checkpoint& checkpoint) {
    return checkpoint.steps_done > checkpoint_step;
  });
  return std::move(stored.checkpoints);
}

// What the checkpoints may take besides what they share.
RetentionLimits Without(int64_t shared_bytes, RetentionLimits limits) {
  if (limits.max_bytes > 0)
    limits.max_bytes = std::max<int64_t>(1, limits.max_bytes - shared_bytes);
  return limits;
}

// Takes from the checkpoints that are to go, given in ascending order, the newest ones without
// which so many bytes become free. 0: all go.
void KeepUnneeded(const std::vector<KeptCheckpoint>& checkpoints, int64_t needed_bytes,
                  std::vector<size_t>* removed) {
  if (needed_bytes <= 0) return;
  size_t count = 0;
  for (int64_t freed = 0; count < removed->size() && freed < needed_bytes; ++count) {
    freed += checkpoints[(*removed)[count]].bytes;
  }
  removed->resize(count);
}

// Distance of most of the checkpoints.
int64_t UsualDistance(const std::vector<StoredCheckpoints::Checkpoint>& checkpoints) {
  std::vector<int64_t> distances;
  int64_t before = 0;
  for (size_t i = 0; i + kLastThatStay < checkpoints.size(); ++i) {
    distances.push_back(checkpoints[i].steps_done - before);
    before = checkpoints[i].steps_done;
  }
  if (distances.empty()) return 0;
  const auto middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
  std::nth_element(distances.begin(), middle, distances.end());
  return *middle;
}

}  // namespace

bool JobRunner::IsRecordedHere(const Job& job) const {
  return tools_.recordings != nullptr && IsRecorded(job.record.job.spec());
}

void JobRunner::SetRecorded(Job* job, int64_t checkpoints, int64_t bytes) {
  v1::Job& record = job->record.job;
  if (record.recorded_checkpoints() == checkpoints && record.recorded_bytes() == bytes) return;
  recorded_bytes_ += bytes - record.recorded_bytes();
  record.set_recorded_checkpoints(checkpoints);
  record.set_recorded_bytes(bytes);
  MarkDirty(job);
}

size_t JobRunner::ThinRecording(const std::string& job_id, Thinning how, const std::string& why,
                                int64_t needed_bytes) {
  absl::MutexLock thinning(&thinning_);
  RetentionLimits limits;
  int64_t checkpoint_step = 0, best_steps = 0;
  bool succeeded = false;
  int32_t over = 0;  // attempts before this one write nothing any more
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<Job*> job = Find(job_id);
    if (!job.ok() || !IsRecordedHere(**job)) return 0;
    over = (*job)->life.attempts + (IsOver((*job)->life.state) && (*job)->attempt == nullptr);
    const v1::RecordOptions& options = (*job)->record.job.spec().record();
    limits.keep = options.keep();
    limits.max_bytes = options.max_bytes() > 0 ? options.max_bytes() : options_.record_bytes;
    if (options.mode() == v1::RecordOptions::ADAPTIVE) {
      limits.least_distance = (*job)->record.job.total_steps() / kMostUseful;
    }
    checkpoint_step = (*job)->life.checkpoint_step;
    best_steps = (*job)->validations.kept_steps();
    succeeded = (*job)->life.state == v1::SUCCEEDED;
  }
  absl::StatusOr<StoredCheckpoints> stored = ListStoredCheckpoints(*tools_.checkpoints, job_id);
  if (!stored.ok()) {
    spdlog::warn("job id={}: its recording cannot be listed: {}", job_id,
                 stored.status().ToString());
    return 0;
  }
  std::set<std::string> copied;
  const bool waits_for_copies = tools_.spool != nullptr && how == Thinning::kToLimits;
  if (waits_for_copies) {
    const absl::StatusOr<std::vector<v1::RecordedCheckpoint>> copies =
        tools_.recordings->copies().CopiesOf(job_id);
    if (!copies.ok()) return 0;
    const std::set<std::string> unusable = tools_.recordings->UnusableCopies(job_id);
    for (const v1::RecordedCheckpoint& copy : *copies) {
      if (copy.spool() != tools_.spool->url() || unusable.contains(copy.directory())) continue;
      copied.insert(copy.directory());
    }
  }
  int64_t shared_bytes = stored->shared_bytes;
  const std::vector<StoredCheckpoints::Checkpoint> known =
      KnownTo(*std::move(stored), checkpoint_step);
  std::vector<KeptCheckpoint> kept;
  for (const StoredCheckpoints::Checkpoint& checkpoint : known) {
    const bool best = best_steps > 0 && checkpoint.steps_done == best_steps;
    kept.push_back({checkpoint.steps_done, checkpoint.bytes,
                    best || (waits_for_copies && !copied.contains(checkpoint.directory))});
  }
  RemovedCheckpoints chosen;
  switch (how) {
    case Thinning::kToLimits:
      chosen = ChooseRemoved(kept, Without(shared_bytes, limits));
      break;
    case Thinning::kOut:
      chosen = {ThinOut(kept), true};
      KeepUnneeded(kept, needed_bytes, &chosen.indices);
      break;
    case Thinning::kAll:
      for (size_t i = 0; i < kept.size(); ++i) {
        const bool last = i + kLastThatStay >= kept.size();
        if (succeeded || (!last && !kept[i].stays)) chosen.indices.push_back(i);
      }
      chosen.thinned = true;
      break;
  }
  std::vector<StoredCheckpoints::Checkpoint> left;
  size_t removed = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < known.size(); ++i) {
    if (std::binary_search(chosen.indices.begin(), chosen.indices.end(), i)) {
      const absl::Status gone =
          RemoveCheckpoint(*tools_.checkpoints, JoinPath(job_id, known[i].directory));
      if (gone.ok()) {
        ++removed;
        continue;
      }
      spdlog::warn("job id={}: {}", job_id, gone.ToString());
    }
    bytes += known[i].bytes;
    left.push_back(known[i]);
  }
  if (removed > 0 && shared_bytes > 0) {
    const absl::StatusOr<int64_t> shared = RemoveUnusedShared(*tools_.checkpoints, job_id, over);
    if (shared.ok()) shared_bytes = *shared;
    if (!shared.ok()) spdlog::warn("job id={}: {}", job_id, shared.status().ToString());
  }
  bytes += shared_bytes;
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Job*> job = Find(job_id);
  if (!job.ok()) return removed;
  SetRecorded(*job, static_cast<int64_t>(left.size()), bytes);
  if (how == Thinning::kOut && chosen.indices.empty() && IsOver((*job)->life.state)) {
    (*job)->only_last_stay = true;
  }
  if (how == Thinning::kAll) (*job)->thinned_whole = true;
  if (!chosen.thinned || removed == 0) return removed;
  std::string message = absl::StrCat(
      why.empty() ? absl::StrCat("the recording takes more than ", FormatSize(limits.max_bytes))
                  : why,
      ": ", removed, " of its ", known.size(), " checkpoints were removed");
  if (const int64_t distance = UsualDistance(left); distance > 0) {
    absl::StrAppend(&message, ", most others are ", distance, " steps apart now");
  }
  if (waits_for_copies) absl::StrAppend(&message, "; their copies stay in ", tools_.spool->url());
  spdlog::info("job id={}: {}", job_id, absl::CHexEscape(message));
  (*job)->pending.messages.push_back(WarningMessage(std::move(message)));
  MarkDirty(*job);
  return removed;
}

void JobRunner::OnSpooled(const std::string& job_id) {
  ThinRecording(job_id, Thinning::kToLimits, "");
}

bool JobRunner::ThinForRoom(const std::string& job_id) {
  constexpr int kMostTries = 8;
  constexpr char kDiskFull[] = "the disk is full, and the recording makes room";
  if (ThinRecording(job_id, Thinning::kOut, kDiskFull) > 0) return true;
  for (int tries = 0; tries < kMostTries; ++tries) {
    std::optional<std::pair<std::string, Thinning>> oldest;
    {
      absl::MutexLock lock(&mutex_);
      oldest = OldestRecording();
    }
    if (!oldest.has_value()) return false;
    if (ThinRecording(oldest->first, oldest->second, kDiskFull) > 0) return true;
  }
  return false;
}

std::optional<std::pair<std::string, JobRunner::Thinning>> JobRunner::OldestRecording() const {
  const Job* oldest = nullptr;
  bool only_last_stay = false;  // of `oldest`
  for (const auto& [number, job] : by_number_) {
    const v1::Job& record = job->record.job;
    if (!IsOver(job->life.state) || job->attempt != nullptr || job->deleted) continue;
    const bool last =
        job->only_last_stay || record.recorded_checkpoints() <= static_cast<int64_t>(kLastThatStay);
    if (record.recorded_checkpoints() == 0 || job->thinned_whole) continue;
    if (last && job->life.state != v1::SUCCEEDED) continue;
    if (oldest == nullptr || record.finished_unix_ms() < oldest->record.job.finished_unix_ms()) {
      oldest = job.get();
      only_last_stay = last;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  return std::pair{oldest->record.job.id(), only_last_stay ? Thinning::kAll : Thinning::kOut};
}

void JobRunner::ThinOldRecordings() {
  const int64_t reserve = options_.disk ? MissingRoom(options_.disk()) : 0;
  // Not a checkpoint each time that a running job takes one.
  constexpr int64_t kSparePart = 16;
  std::optional<std::pair<std::string, Thinning>> oldest;
  bool too_many = false;
  int64_t needed = 0;
  {
    absl::MutexLock lock(&mutex_);
    too_many = options_.recordings_bytes > 0 && recorded_bytes_ > options_.recordings_bytes;
    if (recorded_bytes_ == 0 || (!too_many && reserve == 0)) return;
    if (too_many) {
      needed = recorded_bytes_ - options_.recordings_bytes + options_.recordings_bytes / kSparePart;
    }
    oldest = OldestRecording();
  }
  if (!oldest.has_value()) return;
  ThinRecording(oldest->first, oldest->second,
                too_many
                    ? absl::StrCat("all recordings together take more than ",
                                   FormatSize(options_.recordings_bytes), " (--recordings-bytes)")
                    : absl::StrCat("the disk has less than ", FormatSize(reserve), " free"),
                reserve > 0 ? 0 : needed);
}

void JobRunner::RemoveUnrecordedOf(const std::string& job_id, int32_t attempts,
                                   int64_t checkpoint_step) {
  RemoveUnrecorded(*tools_.checkpoints, job_id, attempts, checkpoint_step);
  ThinRecording(job_id, Thinning::kToLimits, "");
}

void JobRunner::CountRecordings(const std::vector<ObjectReader::Object>& objects) {
  std::map<std::string, std::vector<ObjectReader::Object>> by_job;
  for (const ObjectReader::Object& object : objects) {
    by_job[object.name.substr(0, object.name.find('/'))].push_back(object);
  }
  for (const int64_t number : over_) {
    Job& job = *by_number_.at(number);
    if (!IsRecordedHere(job)) continue;
    const std::string& id = job.record.job.id();
    absl::StatusOr<StoredCheckpoints> stored =
        CheckpointsAmong(by_job[id], id, *tools_.checkpoints);
    if (!stored.ok()) continue;  // the loop looks again
    int64_t bytes = stored->shared_bytes;
    const size_t all = stored->checkpoints.size();
    const bool whole = stored->incomplete.empty() && stored->unused_shared().empty();
    const auto known = KnownTo(*std::move(stored), job.life.checkpoint_step);
    for (const StoredCheckpoints::Checkpoint& checkpoint : known) bytes += checkpoint.bytes;
    SetRecorded(&job, static_cast<int64_t>(known.size()), bytes);
    job.only_recording_left = whole && known.size() == all;
  }
}

}  // namespace espalier
