#include "server/inference/models/async_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

// A longer step counts as hung. Large models' steps take some tenths of a second.
constexpr absl::Duration kHungStepTimeout = absl::Seconds(2);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(250);

absl::Time DeadlineOf(absl::Time arrival, double timeout_seconds) {
  return timeout_seconds > 0 ? arrival + absl::Seconds(timeout_seconds) : absl::InfiniteFuture();
}

// The last event of a request that the engine does not answer.
RequestEvent LastEvent(absl::Status why) {
  RequestEvent event;
  event.finished = true;
  const bool cancelled = absl::IsCancelled(why);
  event.reason = cancelled ? FinishReason::kCancelled : FinishReason::kError;
  if (!cancelled) event.error = std::move(why);
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AsyncEngine>> AsyncEngine::Create(EngineParts parts,
                                                                 EngineOptions options) {
  std::vector<ModelRunner*> ssms;
  for (const auto& ssm : parts.ssms) ssms.push_back(ssm.get());
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(parts.llm.get(), ssms, parts.tokenizer.get(), options);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<AsyncEngine>(new AsyncEngine(std::move(parts), *std::move(engine),
                                                      options.max_requests, options.max_queue));
}

AsyncEngine::AsyncEngine(EngineParts parts, std::unique_ptr<Engine> engine, int max_requests,
                         int max_queue)
    : parts_(std::move(parts)),
      max_requests_(max_requests),
      max_queue_(std::max(1, max_queue)),
      max_concurrent_(std::max(1, std::min(max_requests, max_queue))),
      engine_(std::move(engine)) {
  statistics_ = engine_->statistics();
  thread_ = std::thread([this] { Run(); });
  watcher_ = std::thread([this] { Watch(); });
}

AsyncEngine::~AsyncEngine() {
  End(absl::UnavailableError("the model was unloaded"));
  bool hangs;
  {
    absl::MutexLock lock(&mutex_);
    hangs = !mutex_.AwaitWithTimeout(absl::Condition(&loop_ended_), kHungStepTimeout);
  }
  if (hangs) {
    parts_.llm->Abandon();
    for (const auto& ssm : parts_.ssms) ssm->Abandon();
  }
  thread_.join();
  watcher_.join();
}

absl::StatusOr<AsyncEngine::Ticket> AsyncEngine::Submit(SharedPrompt prompt, RequestOptions options,
                                                        Listener listener) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return end_status_;
  const Ticket ticket = next_ticket_++;
  // The engine would reject one, too, but possibly much later.
  if (submitted_ >= max_queue_ && !options.admission_guaranteed()) {
    auto last = inbox_.end();
    for (auto one = inbox_.begin(); one != inbox_.end(); ++one) {
      if (one->cancel || one->options.admission_guaranteed() ||
          one->options.priority <= options.priority)
        continue;
      if (last == inbox_.end() || one->options.priority >= last->options.priority) last = one;
    }
    rejections_.emplace_back(
        std::move(last == inbox_.end() ? listener : last->listener),
        WithRetryAfter(absl::ResourceExhaustedError(
            absl::StrCat(submitted_,
                         " requests have come during one step, and no more may wait: try again "
                         "later"))));
    if (last == inbox_.end()) return ticket;
    inbox_.erase(last);
    --submitted_;
    --open_count_;
  }
  ++open_count_;
  ++submitted_;
  inbox_.push_back({.ticket = ticket,
                    .prompt = std::move(prompt),
                    .options = std::move(options),
                    .listener = std::move(listener),
                    .arrival = absl::Now()});
  return ticket;
}

void AsyncEngine::End(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  stopping_ = true;
  end_status_ = std::move(why);
}

void AsyncEngine::Cancel(Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  const auto waits = std::find_if(inbox_.begin(), inbox_.end(), [&](const Command& command) {
    return command.ticket == ticket && !command.cancel;
  });
  if (waits == inbox_.end()) {
    inbox_.push_back({.ticket = ticket, .cancel = true});
    return;
  }
  // The engine does not know it yet: free its place now, not after the running step.
  rejections_.emplace_back(std::move(waits->listener), absl::CancelledError("cancelled"));
  inbox_.erase(waits);
  --submitted_;
  --open_count_;
}

EngineStatistics AsyncEngine::statistics() const {
  absl::MutexLock lock(&mutex_);
  return statistics_;
}

int AsyncEngine::open() const {
  absl::MutexLock lock(&mutex_);
  return open_count_;
}

int AsyncEngine::RetryAfterSeconds() const {
  absl::MutexLock lock(&mutex_);
  return DelaySeconds();
}

int AsyncEngine::DelaySeconds() const {
  // In that time, as many requests finish as run concurrently.
  return static_cast<int>(std::clamp(std::ceil(mean_seconds_ / max_requests_), 1.0, 60.0));
}

absl::Status AsyncEngine::WithRetryAfter(absl::Status status) const {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  status.SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(DelaySeconds())));
  return status;
}

void AsyncEngine::Run() {
  for (;;) {
    std::vector<Command> commands;
    {
      absl::MutexLock lock(&mutex_);
      if (engine_->idle()) mutex_.Await(absl::Condition(this, &AsyncEngine::HasWork));
      if (stopping_) {
        loop_ended_ = true;
        break;
      }
      commands.swap(inbox_);
      submitted_ = 0;
      step_began_ = absl::Now();
    }
    for (Command& command : commands) Execute(std::move(command));
    // A failed step has ended its requests with events.
    if (!engine_->idle()) engine_->Step().IgnoreError();
    Dispatch();
    absl::MutexLock lock(&mutex_);
    step_began_ = absl::InfiniteFuture();
    statistics_ = engine_->statistics();
  }
  absl::MutexLock delivery_lock(&delivery_mutex_);
  std::vector<Command> commands;
  std::vector<Rejection> answers;
  RequestEvent last;
  {
    absl::MutexLock lock(&mutex_);
    last = LastEvent(end_status_);
    commands.swap(inbox_);
    answers.swap(rejections_);
  }
  for (const auto& [id, open] : open_) {
    if (open.listener) open.listener(last);
  }
  for (const Command& command : commands) {
    if (!command.cancel) command.listener(last);
  }
  for (const auto& [listener, why] : answers) listener(LastEvent(why));
  absl::MutexLock lock(&mutex_);
  open_count_ = 0;
}

void AsyncEngine::Execute(Command command) {
  absl::MutexLock delivery_lock(&delivery_mutex_);
  if (command.cancel) {
    auto it = ids_.find(command.ticket);
    if (it != ids_.end()) engine_->Cancel(it->second);
    return;
  }
  const double timeout = command.options.timeout_seconds;
  const double age = std::max(0.0, absl::ToDoubleSeconds(absl::Now() - command.arrival));
  absl::StatusOr<RequestId> id = engine_->Submit(*command.prompt, std::move(command.options), age);
  if (!id.ok()) {
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      --open_count_;
      status = WithRetryAfter(id.status());
    }
    command.listener(LastEvent(std::move(status)));
    return;
  }
  ids_[command.ticket] = *id;
  open_[*id] = {command.ticket, std::move(command.listener), DeadlineOf(command.arrival, timeout)};
}

void AsyncEngine::Dispatch() {
  absl::MutexLock delivery_lock(&delivery_mutex_);
  for (const RequestEvent& event : engine_->TakeEvents()) {
    auto it = open_.find(event.id);
    if (it == open_.end()) continue;
    const bool answered = !it->second.listener;
    if (!answered && absl::IsResourceExhausted(event.error)) {
      RequestEvent refusal = event;
      {
        absl::MutexLock lock(&mutex_);
        refusal.error = WithRetryAfter(event.error);
      }
      it->second.listener(refusal);
    } else if (!answered) {
      it->second.listener(event);
    }
    if (!event.finished) continue;
    if (!answered) {
      absl::MutexLock lock(&mutex_);
      --open_count_;
      const double seconds = event.usage.seconds - event.usage.seconds_queued;
      mean_seconds_ += (mean_seconds_ == 0 ? 1 : 0.1) * (seconds - mean_seconds_);
    }
    ids_.erase(it->second.ticket);
    open_.erase(it);
  }
}

void AsyncEngine::Watch() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(this, &AsyncEngine::HasRejections), kWatchInterval);
      if (loop_ended_) return;
      if (rejections_.empty() && absl::Now() - step_began_ < kHungStepTimeout) continue;
    }
    absl::MutexLock delivery_lock(&delivery_mutex_);
    DeliverWithoutEngine();
  }
}

void AsyncEngine::DeliverWithoutEngine() {
  std::vector<Rejection> answers;
  {
    absl::MutexLock lock(&mutex_);
    answers.swap(rejections_);
    CollectExpired(&answers);
  }
  for (const auto& [listener, why] : answers) listener(LastEvent(why));
}

// During a hung step: answers cancelled and expired requests. A queued cancel tells the engine once
// the step ends.
void AsyncEngine::CollectExpired(std::vector<Rejection>* answers) {
  const absl::Time now = absl::Now();
  if (now - step_began_ < kHungStepTimeout) return;
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("the request's time is over; the model's step has taken ",
                   absl::FormatDuration(absl::Trunc(now - step_began_, absl::Seconds(1))),
                   " so far, as if a worker hung"));
  const absl::Status cancelled = absl::CancelledError("cancelled");
  const absl::Status& otherwise = stopping_ ? end_status_ : late;
  absl::flat_hash_set<Ticket> unwanted;
  for (const Command& command : inbox_) {
    if (command.cancel) unwanted.insert(command.ticket);
  }
  const auto answer = [&](Ticket ticket, absl::Time deadline, Listener& listener) {
    const bool cancel = unwanted.contains(ticket);
    if (!listener || (!cancel && now < deadline && !stopping_)) return false;
    answers->emplace_back(std::exchange(listener, nullptr), cancel ? cancelled : otherwise);
    --open_count_;
    return true;
  };
  for (auto& [id, open] : open_) {
    if (!answer(open.ticket, open.deadline, open.listener)) continue;
    if (!unwanted.contains(open.ticket)) inbox_.push_back({.ticket = open.ticket, .cancel = true});
  }
  const auto gone = [&](Command& command) {
    if (command.cancel) return false;
    const double timeout = command.options.timeout_seconds;
    return answer(command.ticket, DeadlineOf(command.arrival, timeout), command.listener);
  };
  const auto end = std::remove_if(inbox_.begin(), inbox_.end(), gone);
  submitted_ -= static_cast<int>(inbox_.end() - end);
  inbox_.erase(end, inbox_.end());
}

}  // namespace espalier
