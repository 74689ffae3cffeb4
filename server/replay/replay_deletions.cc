// How ReplayManager deletes replays, and what it does with those of deleted jobs.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/replay/replay_manager.h"

namespace espalier {
namespace {

std::string StateInWords(v1::ReplayState state) {
  const std::string& name = v1::ReplayState_Name(state);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "REPLAY_"));
}

}  // namespace

absl::Status ReplayManager::Delete(const std::string& replay_id) {
  v1::StoredReplay marked;
  std::shared_ptr<RunningReplay> ended;
  {
    absl::MutexLock lock(&mutex_);
    while (removing_.contains(replay_id)) changed_.Wait(&mutex_);
    const auto found = replays_.find(replay_id);
    if (found == replays_.end()) return ReplayNotFound(replay_id);
    Entry& entry = found->second;
    if (const v1::ReplayState state = entry.stored.info().state(); !IsReplayOver(state)) {
      return absl::FailedPreconditionError(
          absl::StrCat("replay ", replay_id, " is ", StateInWords(state),
                       "; only one that is over can be deleted. Cancel it first: espalier replay "
                       "cancel ",
                       replay_id));
    }
    marked = entry.stored;
    marked.set_deleted(true);
    // First: whatever happens from here on, nobody sees a part of it.
    if (!entry.stored.deleted()) {
      if (absl::Status s = records_.Put(marked); !s.ok()) return s;
    }
    tools_.answers->Hide(replay_id, true);
    entry.stored = marked;
    ended = std::move(entry.running);
    removing_.insert(replay_id);
    changed_.SignalAll();
  }
  const absl::Cleanup removed = [&] {
    absl::MutexLock lock(&mutex_);
    removing_.erase(replay_id);
    changed_.SignalAll();
  };
  ended.reset();  // joins its thread, whose last act takes the lock
  absl::Status status = RemoveMarked(marked);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("replay ", replay_id, " is hidden, but its answers cannot be removed yet: ",
                   status.message(), "; delete it again to free their space"));
}

absl::Status ReplayManager::RemoveMarked(const v1::StoredReplay& replay) {
  const std::string& id = replay.info().id();
  for (const std::string& job : replay.job_ids()) {
    if (absl::Status s = tools_.answers->Remove(job, id); !s.ok()) return s;
  }
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = records_.Remove(id); !s.ok()) return s;
  tools_.answers->Hide(id, false);
  replays_.erase(id);
  spdlog::info("replay id={} deleted", id);
  return absl::OkStatus();
}

bool ReplayManager::HasNoJob(const v1::StoredReplay& replay) const {
  return std::none_of(replay.job_ids().begin(), replay.job_ids().end(),
                      [&](const std::string& job) {
                        return tools_.planner->Find(job, Caller::Unrestricted()).ok();
                      });
}

absl::Status ReplayManager::BeforeDeletion(const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : replays_) {
    const v1::StoredReplay& replay = entry.stored;
    if (IsReplayOver(replay.info().state())) continue;
    const auto& jobs = replay.job_ids();
    if (std::find(jobs.begin(), jobs.end(), job_id) == jobs.end()) continue;
    return absl::FailedPreconditionError(absl::StrCat("job ", job_id, " is read by ", id,
                                                      ", which is not over; wait for it, or cancel "
                                                      "it: espalier replay cancel ",
                                                      id));
  }
  gone_jobs_.insert(job_id);
  return absl::OkStatus();
}

std::optional<int64_t> ReplayManager::CountAnswers(const std::string& replay_id,
                                                   const std::vector<std::string>& jobs,
                                                   const std::string& but) const {
  int64_t answers = 0;
  for (const std::string& job : jobs) {
    if (job == but) continue;
    const absl::StatusOr<std::vector<AnswerChunk>> chunks = tools_.answers->List(job, replay_id);
    if (!chunks.ok()) return std::nullopt;
    for (const AnswerChunk& chunk : *chunks) {
      const absl::StatusOr<v1::QueryHistoryReply> rows = tools_.answers->Read(job, chunk);
      if (!rows.ok()) return std::nullopt;
      answers += rows->rows_size();
    }
  }
  return answers;
}

void ReplayManager::ForgetRun(const std::string& job_id, std::optional<int64_t> answers,
                              v1::StoredReplay* replay) {
  v1::ReplayInfo& info = *replay->mutable_info();
  const auto& jobs = replay->job_ids();
  const auto at = std::find(jobs.begin(), jobs.end(), job_id) - jobs.begin();
  if (at == jobs.size()) return;
  const std::string run = info.runs(static_cast<int>(at));
  info.add_notes(absl::StrCat(run, " was deleted, and the answers of it with it"));
  replay->mutable_job_ids()->erase(replay->mutable_job_ids()->begin() + at);
  *info.mutable_job_ids() = replay->job_ids();
  info.mutable_runs()->erase(info.mutable_runs()->begin() + at);
  auto& segments = *info.mutable_segments();
  segments.erase(
      std::remove_if(segments.begin(), segments.end(),
                     [&](const v1::ReplaySegment& segment) { return segment.job_id() == job_id; }),
      segments.end());
  if (answers.has_value()) {
    info.set_rows(*answers);
  } else {
    info.add_notes("the answers that are left could not be counted: the number is that of before");
  }
}

void ReplayManager::AfterDeletion(const std::string& job_id, bool deleted) {
  std::map<std::string, std::vector<std::string>> of_more;  // jobs by replay
  {
    absl::MutexLock lock(&mutex_);
    if (!deleted) {
      gone_jobs_.erase(job_id);
      return;
    }
    for (const auto& [id, entry] : replays_) {
      const auto& jobs = entry.stored.job_ids();
      const bool reads = std::find(jobs.begin(), jobs.end(), job_id) != jobs.end();
      if (reads && jobs.size() > 1) of_more[id] = {jobs.begin(), jobs.end()};
    }
  }
  std::map<std::string, std::optional<int64_t>> left;  // answers, which may be many to read
  for (const auto& [id, jobs] : of_more) left[id] = CountAnswers(id, jobs, job_id);
  std::vector<std::shared_ptr<RunningReplay>> ended;  // joined without the lock
  absl::MutexLock lock(&mutex_);
  for (auto it = replays_.begin(); it != replays_.end();) {
    v1::StoredReplay& replay = it->second.stored;
    const std::string id = it->first;
    const auto& jobs = replay.job_ids();
    const auto found = std::find(jobs.begin(), jobs.end(), job_id);
    if (found == jobs.end() || replay.deleted()) {
      ++it;
      continue;
    }
    absl::Status status;
    if (HasNoJob(replay)) {
      status = records_.Remove(id);
      ended.push_back(std::move(it->second.running));
      it = replays_.erase(it);
    } else {
      const auto counted = left.find(id);
      ForgetRun(job_id, counted != left.end() ? counted->second : std::nullopt, &replay);
      ++it->second.version;
      status = records_.Put(replay);
      ++it;
    }
    // The next start forgets it as well; only the note would be lost.
    if (!status.ok()) spdlog::warn("replay id={}: {}", id, status.ToString());
  }
  changed_.SignalAll();
}

}  // namespace espalier
