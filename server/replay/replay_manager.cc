#include "server/replay/replay_manager.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "server/store/idempotency.h"
#include "storage/data_folder_names.h"

namespace espalier {
namespace {

constexpr absl::Duration kWatchTick = absl::Milliseconds(200);
constexpr size_t kIdDigits = 12;
// Each has threads of its own.
constexpr size_t kMostRunning = 64;

}  // namespace

bool IsReplayOver(v1::ReplayState state) {
  return state != v1::REPLAY_WAITING && state != v1::REPLAY_RUNNING;
}

absl::Status ReplayNotFound(const std::string& replay_id) {
  return absl::NotFoundError(absl::StrCat("there is no replay '", replay_id.substr(0, 100),
                                          "'; espalier replay list shows those that there are"));
}

ReplayManager::ReplayManager(const ReplayTools& tools, JobStore* jobs)
    : tools_(tools), records_(jobs) {}

ReplayManager::~ReplayManager() { Stop(); }

absl::Status ReplayManager::LoadStored(std::vector<v1::StoredReplay>* marked) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::vector<v1::StoredReplay>> stored = records_.Load();
  if (!stored.ok()) return stored.status();
  for (v1::StoredReplay& replay : *stored) {
    const std::string id = replay.info().id();
    if (!replay.deleted() && HasNoJob(replay)) {
      if (absl::Status s = records_.Remove(id); !s.ok()) return s;
      continue;
    }
    if (replay.deleted()) {
      tools_.answers->Hide(id, true);
      marked->push_back(replay);
    }
    if (replay.info().runs().empty()) NameRuns(&replay);
    // A deletion that was interrupted before the replay was told.
    if (IsReplayOver(replay.info().state()) && !replay.deleted()) {
      const std::vector<std::string> jobs(replay.job_ids().begin(), replay.job_ids().end());
      bool forgotten = false;
      for (const std::string& job : jobs) {
        if (tools_.planner->Find(job, Caller::Unrestricted()).ok()) continue;
        forgotten = true;
        ForgetRun(job, CountAnswers(id, jobs, job), &replay);
      }
      absl::Status put = forgotten ? records_.Put(replay) : absl::OkStatus();
      if (!put.ok()) return put;
    }
    replays_[id].stored = std::move(replay);
    if (!IsReplayOver(replays_[id].stored.info().state())) Run(id, nullptr);
  }
  return absl::OkStatus();
}

void ReplayManager::NameRuns(v1::StoredReplay* replay) const {
  v1::ReplayInfo& info = *replay->mutable_info();
  *info.mutable_job_ids() = replay->job_ids();
  for (const std::string& job : replay->job_ids()) {
    const absl::StatusOr<v1::Recording> facts = tools_.attempts->recordings->LoadFacts(job);
    // Of a run that was deleted, nothing else is known.
    info.add_runs(facts.ok() ? absl::StrCat(facts->experiment(), "@", facts->version()) : job);
  }
}

void ReplayManager::RemoveLeftFolders() const {
  CheckpointStore& store = *tools_.attempts->data_folder;
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = store.List(kCheckpointsFolder);
  if (!objects.ok()) return;
  std::set<std::string> left;
  for (const ObjectReader::Object& object : *objects) {
    const std::vector<std::string> parts = absl::StrSplit(object.name, '/');
    if (!absl::StrContains(parts[1], "@replay-")) continue;  // ReplayRanks::Name
    left.insert(absl::StrCat(parts[0], "/", parts[1]));
  }
  for (const std::string& folder : left) store.Delete(folder).IgnoreError();
}

absl::Status ReplayManager::Start() {
  RemoveLeftFolders();
  std::vector<v1::StoredReplay> marked;
  if (absl::Status s = LoadStored(&marked); !s.ok()) return s;
  for (const v1::StoredReplay& replay : marked) {
    // Where answers cannot be removed now, as their store is away, the next start tries again.
    const absl::Status status = RemoveMarked(replay);
    if (!status.ok()) spdlog::warn("replay id={}: {}", replay.info().id(), status.ToString());
  }
  return absl::OkStatus();
}

void ReplayManager::Stop() {
  std::vector<std::shared_ptr<RunningReplay>> running;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
    for (auto& [id, entry] : replays_) {
      if (entry.running != nullptr) running.push_back(std::move(entry.running));
    }
  }
  for (const std::shared_ptr<RunningReplay>& replay : running) replay->Stop();
}

void ReplayManager::Run(const std::string& id, std::unique_ptr<PlannedReplay> planned) {
  Entry& entry = replays_[id];
  entry.running = std::make_shared<RunningReplay>(
      tools_, entry.stored, std::move(planned),
      [this, id](const v1::ReplayInfo& info, bool durable) { Published(id, info, durable); });
  entry.running->Start();
}

void ReplayManager::Published(const std::string& id, const v1::ReplayInfo& info, bool durable) {
  absl::MutexLock lock(&mutex_);
  const auto found = replays_.find(id);
  if (found == replays_.end()) return;
  Entry& entry = found->second;
  *entry.stored.mutable_info() = info;
  if (IsReplayOver(info.state())) entry.stored.clear_graphs();
  ++entry.version;
  if (durable) {
    // What cannot be written is written with the next change; an interrupted replay is planned
    // again by its answers, which are durable on their own.
    const absl::Status status = records_.Put(entry.stored);
    if (!status.ok()) spdlog::warn("replay id={}: {}", id, status.ToString());
  }
  if (IsReplayOver(info.state())) {
    spdlog::info("replay id={} is over: {}", id, v1::ReplayState_Name(info.state()));
  }
  changed_.SignalAll();
}

absl::Status ReplayManager::Estimate(const v1::ReplaySpec& spec, const Caller& caller,
                                     v1::ReplayEstimate* estimate) const {
  const absl::StatusOr<std::vector<std::string>> jobs = tools_.planner->Find(spec.run(), caller);
  if (!jobs.ok()) return jobs.status();
  absl::StatusOr<PlannedReplay> planned = tools_.planner->Plan(spec, *jobs);
  if (!planned.ok()) return planned.status();
  *estimate = std::move(planned->estimate);
  return absl::OkStatus();
}

absl::Status ReplayManager::Begin(const v1::StartReplayRequest& request, const Caller& caller,
                                  v1::ReplayInfo* replay) {
  if (absl::Status s = CheckIdempotencyKey(request.idempotency_key()); !s.ok()) return s;
  absl::StatusOr<std::string> random = RandomId();
  if (!random.ok()) return random.status();
  const std::string& key = request.idempotency_key();
  const std::string digits =
      key.empty() ? *random : Sha256Hex(OwnersKey(caller.owner, absl::StrCat("replay ", key)));
  const std::string id = absl::StrCat("replay-", digits.substr(0, kIdDigits));
  const std::string hash = RequestSha256(request);
  {
    absl::MutexLock lock(&mutex_);
    while (starting_.contains(id)) changed_.Wait(&mutex_);
    if (const auto known = replays_.find(id); known != replays_.end()) {
      if (known->second.stored.request_sha256() != hash) {
        return KeyWasUsedBefore(key, "Replay/Start", "Replay/Start");
      }
      if (known->second.stored.deleted()) return ReplayNotFound(id);
      *replay = known->second.stored.info();
      return absl::OkStatus();
    }
    starting_.insert(id);
  }
  const absl::Cleanup started = [&] {
    absl::MutexLock lock(&mutex_);
    starting_.erase(id);
    changed_.SignalAll();
  };
  const absl::StatusOr<std::vector<std::string>> jobs =
      tools_.planner->Find(request.spec().run(), caller);
  if (!jobs.ok()) return jobs.status();
  absl::StatusOr<PlannedReplay> planned = tools_.planner->Plan(request.spec(), *jobs);
  if (!planned.ok()) return planned.status();
  v1::StoredReplay stored;
  v1::ReplayInfo& info = *stored.mutable_info();
  info.set_id(id);
  *info.mutable_spec() = request.spec();
  // Who lists or watches replays needs their names only.
  stored.mutable_graphs()->Swap(info.mutable_spec()->mutable_graphs());
  for (const v1::ReplayGraph& graph : stored.graphs()) {
    info.mutable_spec()->add_graphs()->set_name(graph.name());
  }
  info.set_state(v1::REPLAY_WAITING);
  info.set_owner(caller.owner);
  info.set_created_unix_ms(tools_.clock->NowUnixMillis());
  *info.mutable_segments() = planned->estimate.segments();
  *info.mutable_notes() = planned->estimate.notes();
  for (const v1::ReplayEstimate::Lacking& lacking : planned->estimate.lacking()) {
    for (int i = 0; i < lacking.log_size(); ++i) {
      info.add_notes(
          absl::StrCat(lacking.run(), " has no ", lacking.log(i), ": ", lacking.reasons(i)));
    }
  }
  stored.set_request_sha256(hash);
  for (const ReplayedRun& run : planned->runs) {
    stored.add_job_ids(run.job_id);
    info.add_job_ids(run.job_id);
    info.add_runs(run.name());
  }
  *replay = info;
  absl::MutexLock lock(&mutex_);
  if (stop_) return absl::UnavailableError("the coordinator is going down; try again");
  for (int i = 0; i < info.job_ids_size(); ++i) {
    if (!gone_jobs_.contains(info.job_ids(i))) continue;
    return absl::NotFoundError(absl::StrCat(info.runs(i), " was deleted meanwhile"));
  }
  const auto running = std::count_if(replays_.begin(), replays_.end(), [](const auto& entry) {
    return !IsReplayOver(entry.second.stored.info().state());
  });
  if (static_cast<size_t>(running) >= kMostRunning) {
    return absl::ResourceExhaustedError(
        absl::StrCat(running, " replays are not over: wait for one, or cancel it"));
  }
  if (absl::Status s = records_.Put(stored); !s.ok()) return s;
  replays_[id].stored = std::move(stored);
  Run(id, std::make_unique<PlannedReplay>(*std::move(planned)));
  return absl::OkStatus();
}

absl::Status ReplayManager::Cancel(const std::string& replay_id, v1::ReplayInfo* replay) {
  absl::MutexLock lock(&mutex_);
  const Entry* found = Find(replay_id);
  if (found == nullptr) return ReplayNotFound(replay_id);
  const std::shared_ptr<RunningReplay> running = found->running;
  if (running != nullptr) {
    // It publishes its end, which takes the lock.
    mutex_.Unlock();
    running->Cancel();
    mutex_.Lock();
  }
  while (true) {
    found = Find(replay_id);
    if (found == nullptr) return ReplayNotFound(replay_id);  // it was over, and deleted
    if (stop_ || IsReplayOver(found->stored.info().state())) break;
    changed_.Wait(&mutex_);
  }
  *replay = found->stored.info();
  return absl::OkStatus();
}

const ReplayManager::Entry* ReplayManager::Find(const std::string& id) const {
  const auto found = replays_.find(id);
  return found == replays_.end() || found->second.stored.deleted() ? nullptr : &found->second;
}

absl::Status ReplayManager::Get(const std::string& replay_id, v1::ReplayInfo* replay) const {
  absl::MutexLock lock(&mutex_);
  const Entry* found = Find(replay_id);
  if (found == nullptr) return ReplayNotFound(replay_id);
  *replay = found->stored.info();
  return absl::OkStatus();
}

absl::Status ReplayManager::List(const std::string& run, const Caller& caller,
                                 v1::ListReplaysReply* reply) const {
  std::optional<std::set<std::string>> jobs;
  if (!run.empty()) {
    const absl::StatusOr<std::vector<std::string>> found =
        tools_.planner->Find(run, caller, RunVersions::kAll);
    if (!found.ok()) return found.status();
    jobs.emplace(found->begin(), found->end());
  }
  absl::MutexLock lock(&mutex_);
  std::vector<const Entry*> shown;
  for (const auto& [id, entry] : replays_) {
    const v1::StoredReplay& replay = entry.stored;
    if (replay.deleted() || !caller.MayUse(replay.info().owner())) continue;
    const bool of_run = !jobs.has_value() ||
                        std::any_of(replay.job_ids().begin(), replay.job_ids().end(),
                                    [&](const std::string& job) { return jobs->contains(job); });
    if (of_run) shown.push_back(&entry);
  }
  std::sort(shown.begin(), shown.end(), [](const Entry* a, const Entry* b) {
    return a->stored.info().created_unix_ms() > b->stored.info().created_unix_ms();
  });
  for (const Entry* entry : shown) *reply->add_replays() = entry->stored.info();
  return absl::OkStatus();
}

std::optional<std::string> ReplayManager::OwnerOf(const std::string& replay_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = replays_.find(replay_id);
  if (found == replays_.end()) return std::nullopt;
  return found->second.stored.info().owner();
}

absl::Status ReplayManager::SendRows(const v1::StoredReplay& replay,
                                     const std::function<bool(const v1::ReplayEvent&)>& send,
                                     std::set<std::pair<std::string, AnswerChunk>>* sent,
                                     bool* goes_on) const {
  for (const std::string& job : replay.job_ids()) {
    const absl::StatusOr<std::vector<AnswerChunk>> chunks =
        tools_.answers->List(job, replay.info().id());
    if (!chunks.ok()) return chunks.status();
    for (const AnswerChunk& chunk : *chunks) {
      if (!sent->emplace(job, chunk).second) continue;
      absl::StatusOr<v1::QueryHistoryReply> rows = tools_.answers->Read(job, chunk);
      if (!rows.ok()) return rows.status();
      for (v1::HistoryRow& row : *rows->mutable_rows()) {
        v1::ReplayEvent event;
        *event.mutable_row() = std::move(row);
        *goes_on = send(event);
        if (!*goes_on) return absl::OkStatus();
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReplayManager::Watch(const v1::WatchReplayRequest& request,
                                  const std::function<bool(const v1::ReplayEvent&)>& send,
                                  const std::function<bool()>& cancelled) {
  std::set<std::pair<std::string, AnswerChunk>> sent;
  int64_t seen = -1, rows = 0;
  while (true) {
    v1::StoredReplay replay;
    {
      absl::MutexLock lock(&mutex_);
      const Entry* found = Find(request.replay_id());
      if (found != nullptr && found->version == seen && !stop_) {
        changed_.WaitWithTimeout(&mutex_, kWatchTick);
        found = Find(request.replay_id());
      }
      if (found == nullptr) return ReplayNotFound(request.replay_id());
      if (found->version != seen) {
        seen = found->version;
        *replay.mutable_info() = found->stored.info();
        *replay.mutable_job_ids() = found->stored.job_ids();
      }
      if (stop_) return absl::UnavailableError("the coordinator is going down; try again");
    }
    if (cancelled()) return absl::CancelledError("the client is gone");
    if (!replay.has_info()) continue;
    const bool over = IsReplayOver(replay.info().state());
    bool goes_on = true;
    if (request.with_rows() && (over || replay.info().rows() != rows)) {
      rows = replay.info().rows();
      if (absl::Status s = SendRows(replay, send, &sent, &goes_on); !s.ok()) {
        absl::MutexLock lock(&mutex_);
        return Find(request.replay_id()) == nullptr ? ReplayNotFound(request.replay_id()) : s;
      }
      if (!goes_on) return absl::OkStatus();
    }
    v1::ReplayEvent event;
    *event.mutable_replay() = std::move(*replay.mutable_info());
    if (!send(event) || over) return absl::OkStatus();
  }
}

}  // namespace espalier
