#include "server/inference/remote/serving_session.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "serving/runner/row_outputs.h"
#include "serving/runner/serving_proto.h"

namespace espalier {
namespace {

constexpr absl::Duration kStopTimeout = absl::Seconds(10);
constexpr absl::Duration kPeerErrorWait = absl::Milliseconds(200);

// Calls work(rank) for all ranks concurrently.
template <typename Work>
void OnEachRank(size_t ranks, Work&& work) {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks; ++r) threads.emplace_back([&work, r] { work(r); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

std::string ServingSession::JobId(const RemoteModel& model) {
  return absl::StrCat("serving/", model.name);
}

ServingSession::ServingSession(const ServingCluster& cluster, const RemoteModel& model,
                               std::vector<Member> members, uint64_t attempt)
    : cluster_(cluster),
      model_(model),
      members_(std::move(members)),
      attempt_(attempt),
      ranks_(members_.size()) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].client = cluster_.dial(members_[r]);
    if (model_.programs[r].outputs().contains("logits")) logits_rank_ = r;
  }
}

absl::StatusOr<std::unique_ptr<ServingSession>> ServingSession::Create(
    const ServingCluster& cluster, const RemoteModel& model, std::vector<Member> members,
    int64_t bytes) {
  if (members.size() != model.programs.size()) {
    return absl::InternalError(absl::StrCat(members.size(), " workers for ", model.programs.size(),
                                            " programs of model '", model.name, "'"));
  }
  const absl::StatusOr<uint64_t> attempt = cluster.next_attempt();
  if (!attempt.ok()) return attempt.status();
  const std::string group = model.group != nullptr ? model.group->name() : "";
  const absl::Status taken =
      cluster.workers->Assign(members, {JobId(model), group, bytes, *attempt});
  if (!taken.ok()) return taken;
  return std::unique_ptr<ServingSession>(
      new ServingSession(cluster, model, std::move(members), *attempt));
}

void ServingSession::End() {
  Break("the model was unloaded");
  absl::MutexLock lock(&step_mutex_);
  if (ended_) return;
  ended_ = true;
  reader_.reset();
  OnEachRank(ranks_.size(), [this](size_t r) {
    if (ranks_[r].stream != nullptr) ranks_[r].stream->Finish().IgnoreError();
    ranks_[r].stream.reset();
    v1::StopRequest request;
    *request.mutable_attempt() = AttemptOf(r);
    const absl::Status status = ranks_[r].client->Stop(request, kStopTimeout);
    // No new work for it before it rejoins.
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      cluster_.workers->Suspect(members_[r].lease);
    }
  });
  // Only this attempt: the model may be loaded again already.
  cluster_.rendezvous->End(JobId(model_), attempt_);
  cluster_.workers->Release(JobId(model_), attempt_);
}

std::string ServingSession::Describe(size_t rank) const {
  const Member& member = members_[rank];
  return absl::StrCat("worker ", member.lease.worker_id(),
                      member.name.empty() ? "" : absl::StrCat(" (", member.name, ")"));
}

v1::Attempt ServingSession::AttemptOf(size_t rank) const {
  v1::Attempt ticket;
  ticket.set_job_id(JobId(model_));
  ticket.set_attempt(attempt_);
  ticket.set_worker_epoch(members_[rank].lease.epoch());
  return ticket;
}

absl::Status ServingSession::LoadRank(size_t rank) {
  v1::StartServingRequest request;
  *request.mutable_attempt() = AttemptOf(rank);
  *request.mutable_program() = model_.programs[rank];
  request.set_folder(model_.folder);
  SetWeights(model_.weights, &request);
  SetAdapters(model_.adapters, &request);
  request.mutable_adapter_folders()->Add(model_.adapter_folders.begin(),
                                         model_.adapter_folders.end());
  *request.mutable_limits() = ToProto(model_.limits, model_.max_output_rows);
  // Other ranks may read from slower disks.
  request.set_rendezvous_timeout_seconds(absl::ToDoubleSeconds(cluster_.load_timeout));
  absl::Status status = ranks_[rank].client->StartServing(request, cluster_.load_timeout).status();
  if (!status.ok()) return status;
  ranks_[rank].stream = ranks_[rank].client->ServingSteps();
  v1::ServingStep hello;
  *hello.mutable_attempt() = AttemptOf(rank);
  v1::ServingResult ready;
  if (ranks_[rank].stream->Write(hello) && ranks_[rank].stream->Read(&ready)) {
    return absl::OkStatus();
  }
  status = ranks_[rank].stream->Finish();
  ranks_[rank].stream.reset();
  return status.ok() ? absl::UnavailableError("it ended the stream of steps") : status;
}

absl::Status ServingSession::Load() {
  absl::MutexLock step_lock(&step_mutex_);
  cluster_.rendezvous->Begin(JobId(model_), attempt_);
  absl::Mutex mutex;
  absl::Status first;
  OnEachRank(ranks_.size(), [&](size_t r) {
    const absl::Status status = LoadRank(r);
    if (status.ok()) return;
    absl::MutexLock lock(&mutex);
    if (!first.ok() || !broken().empty()) return;
    first = absl::Status(status.code(), absl::StrCat(Describe(r), ": ", status.message()));
    // Other ranks would wait for it.
    Break(std::string(first.message()));
  });
  // Broken by another thread: no rank has an error.
  if (first.ok()) first = CheckNotBroken();
  if (first.ok() && model_.limits.concurrent_steps > 1) {
    reader_ = std::make_unique<ResultPrefetcher>(ranks_[logits_rank_].stream.get());
  }
  return first;
}

void ServingSession::Break(const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.empty()) return;
    broken_ = reason;
  }
  for (Rank& rank : ranks_) rank.client->Cancel();
}

std::string ServingSession::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

void ServingSession::Watch() {
  for (size_t r = 0; r < members_.size(); ++r) {
    const absl::Status lease = cluster_.workers->Check(members_[r].lease);
    if (!lease.ok()) return Break(absl::StrCat(Describe(r), " is lost: ", lease.message()));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (step_started_.empty() || absl::Now() - step_started_.front() < cluster_.step_timeout)
      return;
  }
  Break(absl::StrCat("a step has taken longer than ", absl::FormatDuration(cluster_.step_timeout)));
}

absl::Status ServingSession::CheckNotBroken() const {
  const std::string reason = broken();
  return reason.empty() ? absl::OkStatus() : absl::UnavailableError(reason);
}

absl::Status ServingSession::BreakIfUnavailable(absl::Status status) {
  if (!absl::IsUnavailable(status)) return status;
  Break(std::string(status.message()));
  // If another thread broke it, that is why the streams ended.
  return CheckNotBroken();
}

absl::Status ServingSession::BeginStep(const RunnerBatch& batch) {
  absl::MutexLock step_lock(&step_mutex_);
  if (absl::Status status = CheckNotBroken(); !status.ok()) return status;
  {
    absl::MutexLock lock(&mutex_);
    step_started_.push_back(absl::Now());
  }
  const absl::Status status = BreakIfUnavailable(Send(batch));
  if (status.ok()) {
    open_.push_back({steps_, batch.logit_rows.size(), batch.wants_hidden, batch.row_outputs});
  } else {
    absl::MutexLock lock(&mutex_);
    step_started_.pop_back();
  }
  return status;
}

absl::Status ServingSession::EndStep(RunnerOutput* logits) {
  absl::MutexLock step_lock(&step_mutex_);
  const OpenStep step = std::move(open_.front());
  open_.pop_front();
  absl::Status status = CheckNotBroken();
  if (status.ok()) status = BreakIfUnavailable(Receive(step, logits));
  absl::MutexLock lock(&mutex_);
  step_started_.pop_front();
  if (!step_started_.empty()) step_started_.front() = absl::Now();  // it has waited for this step
  return status;
}

absl::Status ServingSession::Send(const RunnerBatch& batch) {
  SetBatch(batch, &step_);
  step_.set_number(++steps_);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].stream->Write(step_)) return DiagnoseFailure(r);
  }
  return absl::OkStatus();
}

bool ServingSession::ReadResult() {
  if (reader_ != nullptr) return reader_->Read(&result_);
  return ranks_[logits_rank_].stream->Read(&result_);
}

absl::Status ServingSession::Receive(const OpenStep& step, RunnerOutput* logits) {
  struct Numbers {
    std::vector<float>& to;
    size_t have = 0;

    // Returns false for excess or truncated data.
    bool Take(const std::string& bytes) {
      if (bytes.size() % sizeof(float) != 0 || bytes.size() / sizeof(float) > to.size() - have) {
        return false;
      }
      if (!bytes.empty()) std::memcpy(to.data() + have, bytes.data(), bytes.size());
      have += bytes.size() / sizeof(float);
      return true;
    }
  };
  const size_t rows = step.rows;
  const int vocabulary = model_.limits.vocabulary;
  logits->vocabulary = vocabulary;
  logits->choices.clear();
  logits->values.clear();
  logits->hidden.resize(step.wants_hidden ? rows * static_cast<size_t>(model_.limits.hidden) : 0);
  Numbers values{logits->values}, hidden{logits->hidden};
  v1::ServingResult& result = result_;
  bool begun = false;
  do {
    if (!ReadResult()) return DiagnoseFailure(logits_rank_);
    if (!result.refused().empty()) return absl::InvalidArgumentError(result.refused());
    if (!std::exchange(begun, true)) {
      if (!TakeChoices(result, logits) || logits->choices.size() > rows) {
        return absl::UnavailableError(absl::StrCat(Describe(logits_rank_), " answers step ",
                                                   result.number(), " with torn choices"));
      }
      const auto chosen = std::count_if(logits->choices.begin(), logits->choices.end(),
                                        [](const auto& row) { return !row.empty(); });
      logits->values.resize((rows - static_cast<size_t>(chosen)) * static_cast<size_t>(vocabulary));
    }
    if (result.number() != step.number || !values.Take(result.logits()) ||
        !hidden.Take(result.hidden())) {
      return absl::UnavailableError(
          absl::StrCat(Describe(logits_rank_), " answers step ", result.number(), " with ",
                       result.logits().size(), " and ", result.hidden().size(), " bytes; ",
                       values.to.size() - values.have, " and ", hidden.to.size() - hidden.have,
                       " numbers of step ", step.number, " were due"));
    }
  } while (result.more());
  if (values.have == values.to.size() && hidden.have == hidden.to.size()) {
    const absl::Status status = CheckRunnerOutput(rows, step.row_outputs, vocabulary, *logits);
    if (status.ok()) return status;
    return absl::UnavailableError(absl::StrCat(Describe(logits_rank_), " answers step ",
                                               step.number,
                                               " with what was not asked: ", status.message()));
  }
  return absl::UnavailableError(absl::StrCat(
      Describe(logits_rank_), " gave ", values.have, " of ", values.to.size(), " logits and ",
      hidden.have, " of ", hidden.to.size(), " hidden numbers of step ", step.number));
}

absl::Status ServingSession::Finish(size_t rank) {
  if (rank == logits_rank_) reader_.reset();
  const absl::Status end = ranks_[rank].stream->Finish();
  ranks_[rank].stream.reset();
  return end;
}

absl::Status ServingSession::DiagnoseFailure(size_t first) {
  std::vector<absl::Status> ends(ranks_.size());
  ends[first] = Finish(first);
  // Other ranks notice a lost peer and may know the cause. What still runs then is cancelled.
  absl::SleepFor(kPeerErrorWait);
  for (Rank& rank : ranks_) rank.client->Cancel();
  std::string lost, other;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (r != first) ends[r] = Finish(r);
    if (ends[r].ok() || absl::IsCancelled(ends[r])) continue;
    std::string& to = absl::IsUnavailable(ends[r]) ? lost : other;
    absl::StrAppend(&to, to.empty() ? "" : "; ", Describe(r), ": ", ends[r].message());
  }
  const std::string& known = other.empty() ? lost : other;
  return absl::UnavailableError(known.empty() ? "the workers broke off the step" : known);
}

}  // namespace espalier
