#include "server/distillation/teacher_continuations.h"

#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "models/quantize.h"
#include "models/weights/native_format.h"
#include "ops/quantized/quantize_graph.h"
#include "server/inference/models/async_engine.h"

namespace espalier {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kRefused =
    absl::Seconds(1);  // until the next try, if users fill the queue

// The lowest priority, behind all requests of users.
constexpr int kLowestPriority = std::numeric_limits<int>::max();

// Concurrent requests of an engine without other users.
constexpr int kContinuedAtOnce = 16;
constexpr int kContinuationRows = 256;

// Passes events from the engine's thread to the caller's.
class EventQueue {
 public:
  void Put(int index, const RequestEvent& event) {
    absl::MutexLock lock(&mutex_);
    events_.emplace_back(index, event);
  }
  std::deque<std::pair<int, RequestEvent>> Take() {
    absl::MutexLock lock(&mutex_);
    const auto there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&there), kPoll);
    return std::exchange(events_, {});
  }

 private:
  absl::Mutex mutex_;
  std::deque<std::pair<int, RequestEvent>> events_ ABSL_GUARDED_BY(mutex_);
};

// Returns the served model with the artifact's weights; null if there is none.
absl::StatusOr<std::shared_ptr<LoadedModel>> FindServed(const DistillationDependencies& tools,
                                                        const v1::DistillationSpec& spec) {
  std::string weights = spec.weights();
  if (weights.empty()) {
    absl::StatusOr<ModelDescription> llm = tools.describe(spec.llm());
    if (!llm.ok()) return llm.status();
    WeightFormat format = PackedFormat(llm->model.facts);
    if (llm->model.facts.packed_bits == 0) {
      const absl::StatusOr<ArtifactFolder> folder = tools.artifacts->Pin(spec.llm());
      if (!folder.ok()) return folder.status();
      const absl::StatusOr<NativeFormats> own = NativeFormats::Read(*tools.files, folder->path());
      if (!own.ok()) return own.status();
      format = own->dominant();
    }
    weights = Name(format);
  }
  for (const v1::ServedModel& model : tools.models->List()) {
    if (!AnswersRequests(model) || model.artifact_version() != spec.llm() ||
        model.weights() != weights ||
        model.max_sequence_length() < spec.prompt_tokens() + spec.continuation_tokens()) {
      continue;
    }
    // It may have been unserved meanwhile.
    if (auto found = tools.models->Find(model.name()); found.ok()) return *std::move(found);
  }
  return std::shared_ptr<LoadedModel>();
}

absl::StatusOr<std::unique_ptr<AsyncEngine>> LoadBeside(const DistillationDependencies& tools,
                                                        const v1::DistillationSpec& spec) {
  v1::ServeModelRequest request;
  request.set_artifact(spec.llm());
  request.set_weights(spec.weights());
  request.set_generation_config("none");
  request.set_max_sequence_length(spec.prompt_tokens() + spec.continuation_tokens());
  request.set_max_requests_per_batch(kContinuedAtOnce);
  request.set_max_tokens_per_batch(kContinuationRows);
  absl::StatusOr<ModelServer::Prepared> llm = tools.models->Prepare(request);
  if (!llm.ok()) return llm.status();
  return AsyncEngine::Create(std::move(llm->parts), std::move(llm->options));
}

// Keeps as many requests open as the engine runs concurrently, and collects results.
class ContinuationRun {
 public:
  // `name`: of the model. Does not keep its engine alive.
  ContinuationRun(std::weak_ptr<AsyncEngine> host, std::string name,
                  const v1::DistillationSpec& spec, v1::DistillationPrompts* prompts)
      : host_(std::move(host)), name_(std::move(name)), spec_(spec), prompts_(*prompts) {}
  ~ContinuationRun() {
    const std::shared_ptr<AsyncEngine> host = host_.lock();
    if (host == nullptr) return;
    for (const auto& [index, ticket] : open_) host->Cancel(ticket);
  }

  absl::Status Run(const ContinuationListener& listener) {
    for (int i = 0; i < prompts_.prompts_size(); ++i) {
      prompts_.prompts(i).continued() ? void(++done_) : waiting_.push_back(i);
    }
    while (done_ < prompts_.prompts_size()) {
      if (absl::Status status = AskMore(); !status.ok()) return status;
      for (const auto& [index, event] : inbox_->Take()) {
        if (absl::Status status = Accept(index, event); !status.ok()) return status;
      }
      if (absl::Status status = listener(done_); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status AskMore() {
    const std::shared_ptr<AsyncEngine> host = host_.lock();
    if (host == nullptr) return Gone();
    if (absl::Now() < next_try_) return absl::OkStatus();
    while (!waiting_.empty() && static_cast<int>(open_.size()) < host->max_concurrent()) {
      if (absl::Status status = Ask(*host); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Gone() const {
    return absl::UnavailableError(absl::StrCat(
        "model '", name_,
        "', which continues the prompts, was unserved; resume this boost-tuning, "
        "which keeps the continuations that came: what is served then makes the rest, or the "
        "artifact is loaded for it"));
  }

  absl::Status Ask(AsyncEngine& host) {
    const int index = waiting_.front();
    waiting_.pop_front();
    const auto& tokens = prompts_.prompts(index).prompt();
    RequestOptions options;
    options.max_tokens = spec_.continuation_tokens();
    options.priority = kLowestPriority;
    options.sampling.temperature = spec_.temperature();
    if (spec_.soft_labels() > 0) options.logprobs = spec_.soft_labels();
    // Per prompt, so that a restart generates the same continuations.
    options.sampling.seed = spec_.seed() + static_cast<uint64_t>(index);
    absl::StatusOr<AsyncEngine::Ticket> ticket = host.Submit(
        {tokens.begin(), tokens.end()}, std::move(options),
        [inbox = inbox_, index](const RequestEvent& event) { inbox->Put(index, event); });
    if (!ticket.ok()) return ticket.status();
    open_[index] = *ticket;
    return absl::OkStatus();
  }

  absl::Status Accept(int index, const RequestEvent& event) {
    v1::DistillationPrompt& arrived = arrived_[index];
    arrived.mutable_continuation()->Add(event.tokens.begin(), event.tokens.end());
    for (const TokenLogprobs& token : event.logprobs) {
      for (const auto& [id, logprob] : token.top) {
        arrived.add_likely(id);
        arrived.add_likely_probability(std::exp(logprob));
      }
    }
    if (!event.finished) return absl::OkStatus();
    open_.erase(index);
    // The queue is full of users' requests; retry later.
    if (absl::IsResourceExhausted(event.error)) {
      arrived_.erase(index);
      waiting_.push_back(index);
      next_try_ = absl::Now() + kRefused;
      return absl::OkStatus();
    }
    if (!event.error.ok()) {
      if (host_.expired()) return Gone();  // the engine ended its requests
      return absl::Status(event.error.code(),
                          absl::StrCat("prompt ", index, ": ", event.error.message()));
    }
    v1::DistillationPrompt* prompt = prompts_.mutable_prompts(index);
    prompt->MergeFrom(arrived);
    prompt->set_continued(true);
    arrived_.erase(index);
    ++done_;
    return absl::OkStatus();
  }

  const std::weak_ptr<AsyncEngine> host_;
  const std::string name_;
  const v1::DistillationSpec& spec_;
  v1::DistillationPrompts& prompts_;
  const std::shared_ptr<EventQueue> inbox_ =
      std::make_shared<EventQueue>();  // outlives a cancelled request
  std::deque<int> waiting_;
  std::map<int, AsyncEngine::Ticket> open_;
  std::map<int, v1::DistillationPrompt> arrived_;  // results not taken yet
  int64_t done_ = 0;
  absl::Time next_try_ = absl::InfinitePast();
};

}  // namespace

absl::Status Continue(const DistillationDependencies& tools, const v1::DistillationSpec& spec,
                      v1::DistillationPrompts* prompts, const ContinuationListener& listener) {
  absl::StatusOr<std::shared_ptr<LoadedModel>> served = FindServed(tools, spec);
  if (!served.ok()) return served.status();
  if (*served != nullptr) {
    const std::string name = (*served)->description.name();
    AsyncEngine* const engine = (*served)->engine.get();
    const std::weak_ptr<AsyncEngine> host =
        std::shared_ptr<AsyncEngine>(*std::move(served), engine);
    return ContinuationRun(host, name, spec, prompts).Run(listener);
  }
  absl::StatusOr<std::unique_ptr<AsyncEngine>> loaded = LoadBeside(tools, spec);
  if (!loaded.ok()) return loaded.status();
  const std::shared_ptr<AsyncEngine> own = *std::move(loaded);
  return ContinuationRun(own, spec.llm(), spec, prompts).Run(listener);
}

}  // namespace espalier
