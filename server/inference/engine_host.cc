#include "server/inference/engine_host.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

RequestEvent ErrorEvent(absl::Status status) {
  RequestEvent event;
  event.finished = true;
  event.reason = FinishReason::kError;
  event.error = std::move(status);
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineHost>> EngineHost::Create(EngineParts parts,
                                                               EngineOptions options) {
  std::vector<ModelRunner*> ssms;
  for (const auto& ssm : parts.ssms) ssms.push_back(ssm.get());
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(parts.llm.get(), ssms, parts.tokenizer.get(), options);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<EngineHost>(new EngineHost(std::move(parts), *std::move(engine),
                                                    options.max_requests, options.max_queue));
}

EngineHost::EngineHost(EngineParts parts, std::unique_ptr<Engine> engine, int max_requests,
                       int max_queue)
    : parts_(std::move(parts)),
      max_requests_(max_requests),
      at_once_(std::max(1, std::min(max_requests, max_queue))),
      engine_(std::move(engine)) {
  statistics_ = engine_->statistics();
  thread_ = std::thread([this] { Run(); });
}

EngineHost::~EngineHost() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::StatusOr<EngineHost::Ticket> EngineHost::Submit(SharedPrompt prompt, RequestOptions options,
                                                      Listener listener) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError("the model is being unloaded");
  const Ticket ticket = next_ticket_++;
  ++open_count_;
  inbox_.push_back({.ticket = ticket,
                    .prompt = std::move(prompt),
                    .options = std::move(options),
                    .listener = std::move(listener)});
  return ticket;
}

void EngineHost::Cancel(Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) inbox_.push_back({.ticket = ticket, .cancel = true});
}

EngineStatistics EngineHost::statistics() const {
  absl::MutexLock lock(&mutex_);
  return statistics_;
}

int EngineHost::open() const {
  absl::MutexLock lock(&mutex_);
  return open_count_;
}

int EngineHost::RetryAfterSeconds() const {
  absl::MutexLock lock(&mutex_);
  // As many leave in that time as run at once.
  return static_cast<int>(std::clamp(std::ceil(seconds_each_ / max_requests_), 1.0, 60.0));
}

absl::Status EngineHost::WithDelay(absl::Status status) const {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  status.SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(RetryAfterSeconds())));
  return status;
}

void EngineHost::Run() {
  for (;;) {
    std::vector<Command> commands;
    {
      absl::MutexLock lock(&mutex_);
      if (engine_->idle()) mutex_.Await(absl::Condition(this, &EngineHost::HasWork));
      if (stopping_) break;
      commands.swap(inbox_);
    }
    for (Command& command : commands) Execute(std::move(command));
    // An error ends the requests that ran; each of them gets it in its event.
    if (!engine_->idle()) engine_->Step().IgnoreError();
    Dispatch();
    absl::MutexLock lock(&mutex_);
    statistics_ = engine_->statistics();
  }
  const RequestEvent last = ErrorEvent(absl::UnavailableError("the model was unloaded"));
  for (const auto& [id, open] : open_) open.listener(last);
  std::vector<Command> commands;
  {
    absl::MutexLock lock(&mutex_);
    commands.swap(inbox_);
  }
  for (const Command& command : commands) {
    if (!command.cancel) command.listener(last);
  }
}

void EngineHost::Execute(Command command) {
  if (command.cancel) {
    auto it = ids_.find(command.ticket);
    if (it != ids_.end()) engine_->Cancel(it->second);
    return;
  }
  absl::StatusOr<RequestId> id = engine_->Submit(*command.prompt, std::move(command.options));
  if (!id.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      --open_count_;
    }
    command.listener(ErrorEvent(WithDelay(id.status())));
    return;
  }
  ids_[command.ticket] = *id;
  open_[*id] = {command.ticket, std::move(command.listener)};
}

void EngineHost::Dispatch() {
  for (const RequestEvent& event : engine_->TakeEvents()) {
    auto it = open_.find(event.id);
    if (it == open_.end()) continue;
    it->second.listener(event);
    if (!event.finished) continue;
    {
      absl::MutexLock lock(&mutex_);
      --open_count_;
      const double seconds = event.usage.seconds - event.usage.seconds_queued;
      seconds_each_ += (seconds_each_ == 0 ? 1 : 0.1) * (seconds - seconds_each_);
    }
    ids_.erase(it->second.ticket);
    open_.erase(it);
  }
}

}  // namespace espalier
