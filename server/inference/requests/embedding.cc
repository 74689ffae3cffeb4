#include "server/inference/requests/embedding.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/inference/field_error.h"

namespace espalier {
namespace {

constexpr double kMinEmbedTimeoutSeconds = 1e-6;  // for expired requests; 0 would mean no timeout

absl::Status CheckEmbedRequest(const v1::EmbedRequest& request, int size,
                               const std::string& model) {
  const int inputs = request.inputs_size();
  if (inputs < 1 || inputs > kMaxEmbedInputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'inputs' has ", inputs, " entries, expected 1 to ", kMaxEmbedInputs));
  }
  if (size == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", model, "' is served without its hidden states"));
  }
  if (request.dimensions() < 0 || request.dimensions() > size) {
    return FieldError("dimensions", absl::StrCat("field 'dimensions' is ", request.dimensions(),
                                                 ", expected 0 (all) to ", size));
  }
  if (!(request.timeout_seconds() >= 0)) {
    return FieldError("timeout_seconds", "field 'timeout_seconds' must be 0 (none) or more");
  }
  if (request.truncate_prompt_tokens() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("field 'truncate_prompt_tokens' is ",
                                                   request.truncate_prompt_tokens(),
                                                   ", expected 1 or more, or 0 for all"));
  }
  const int64_t each = request.dimensions() > 0 ? request.dimensions() : size;
  if (inputs * each > kMaxEmbedNumbers) {
    return absl::InvalidArgumentError(absl::StrCat("field 'inputs' has ", inputs, " entries of ",
                                                   each, " numbers each, expected at most ",
                                                   kMaxEmbedNumbers, " numbers in one reply"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> TokensOf(const v1::EmbedRequest& request, int index,
                                          const LoadedModel& model) {
  const v1::EmbedInput& input = request.inputs(index);
  v1::GenerateRequest prompt;
  prompt.set_no_special_tokens(request.no_special_tokens());
  prompt.set_truncate_prompt_tokens(request.truncate() ? model.engine->context()
                                                       : request.truncate_prompt_tokens());
  if (input.input_case() == v1::EmbedInput::kTokens) {
    *prompt.mutable_tokens() = input.tokens();
  } else {
    prompt.set_text(input.text());
  }
  absl::StatusOr<Prompt> read = PromptOf(prompt, model);
  const int most = model.engine->context();
  absl::Status status = read.status();
  std::vector<int> tokens;
  if (read.ok()) tokens = std::move(read->tokens);
  if (status.ok() && tokens.empty()) status = absl::InvalidArgumentError("it has no tokens");
  if (static_cast<int>(tokens.size()) > most) {
    status = absl::InvalidArgumentError(
        absl::StrCat("it has ", tokens.size(), " tokens, the context ", most));
  }
  if (status.ok()) return tokens;
  return InField(
      "input", absl::Status(status.code(), absl::StrCat("input ", index, ": ", status.message())));
}

// Returns the first `dimensions` (0: all) values, normalized to length 1 unless disabled.
v1::Embedding ToEmbedding(const std::vector<float>& hidden, const v1::EmbedRequest& request) {
  const size_t size =
      request.dimensions() > 0 ? static_cast<size_t>(request.dimensions()) : hidden.size();
  double squares = 0;
  for (size_t i = 0; i < size; ++i) squares += static_cast<double>(hidden[i]) * hidden[i];
  const double scale = request.no_normalization() || squares == 0 ? 1 : 1 / std::sqrt(squares);
  v1::Embedding out;
  for (size_t i = 0; i < size; ++i) out.add_values(static_cast<float>(hidden[i] * scale));
  return out;
}

class EmbeddingGeneration : public Generation,
                            public std::enable_shared_from_this<EmbeddingGeneration> {
 public:
  EmbeddingGeneration(v1::EmbedRequest request, const ModelServer::Target& target,
                      RequestOptions options, std::vector<std::vector<int>> inputs,
                      ServingMetrics* metrics, EmbeddingListener listener)
      : request_(std::move(request)),
        name_(target.model->description.name()),
        model_(target.model),
        engine_(*target.model->engine),
        options_(std::move(options)),
        metrics_(metrics),
        listener_(std::move(listener)),
        inputs_(std::move(inputs)) {
    for (size_t i = 0; i < inputs_.size(); ++i) reply_.add_embeddings();
  }

  // REQUIRES: the caller holds the model.
  absl::Status Start() {
    absl::MutexLock lock(&mutex_);
    absl::Status status;
    for (int i = 0; status.ok() && i < engine_.max_concurrent(); ++i) status = SubmitNext();
    if (!status.ok()) {
      over_ = true;
      CancelAll();
    }
    return status;
  }

  void Cancel() override {
    // Weak: a client that is still connected must not keep an unloaded model alive.
    const std::shared_ptr<LoadedModel> model = model_.lock();
    if (model == nullptr) return;
    Stop();
  }

  void Stop() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    CancelAll();
  }

 private:
  absl::Status SubmitNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (next_ == inputs_.size()) return absl::OkStatus();
    const size_t index = next_++;
    RequestOptions own = options_;
    if (own.timeout_seconds > 0) {
      const double spent = absl::ToDoubleSeconds(absl::Now() - arrival_);
      own.timeout_seconds = std::max(own.timeout_seconds - spent, kMinEmbedTimeoutSeconds);
    }
    absl::StatusOr<AsyncEngine::Ticket> ticket = engine_.Submit(
        std::move(inputs_[index]), std::move(own),
        [self = shared_from_this(), index](const RequestEvent& event) { self->On(index, event); });
    if (ticket.ok()) tickets_[index] = *ticket;
    return ticket.status();
  }

  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [index, ticket] : tickets_) engine_.Cancel(ticket);
  }

  // Runs on the engine's thread, which the engine outlives.
  void On(size_t index, const RequestEvent& event) {
    if (!event.finished) return;
    if (metrics_ != nullptr) {
      metrics_->RequestFinished(name_, v1::GenerateRequest::default_instance(), event);
    }
    const absl::StatusOr<v1::EmbedReply> outcome = RecordResult(index, event);
    if (!outcome.ok() || outcome->embeddings_size() > 0) listener_(outcome);
  }

  // Returns the final result, or an empty reply until then.
  absl::StatusOr<v1::EmbedReply> RecordResult(size_t index, const RequestEvent& event) {
    absl::MutexLock lock(&mutex_);
    if (over_) return v1::EmbedReply();
    tickets_.erase(index);
    absl::Status status = event.error;
    if (cancelled_ || event.reason == FinishReason::kCancelled) {
      status = absl::CancelledError("the request was cancelled");
    } else if (event.reason == FinishReason::kStop) {
      *reply_.mutable_embeddings(static_cast<int>(index)) = ToEmbedding(event.embedding, request_);
      Count(event.usage);
      status = SubmitNext();
    }
    over_ = !status.ok() || ++finished_ == inputs_.size();
    if (!status.ok()) {
      CancelAll();
      return status;
    }
    return over_ ? std::move(reply_) : v1::EmbedReply();
  }

  void Count(const Usage& usage) {
    v1::Usage& sum = *reply_.mutable_usage();
    sum.set_prompt_tokens(sum.prompt_tokens() + usage.prompt_tokens);
    sum.set_cached_tokens(sum.cached_tokens() + usage.cached_tokens);
    sum.set_seconds(std::max(sum.seconds(), usage.seconds));
    sum.set_seconds_queued(std::max(sum.seconds_queued(), usage.seconds_queued));
  }

  const v1::EmbedRequest request_;
  const std::string name_;
  const std::weak_ptr<LoadedModel> model_;
  AsyncEngine& engine_;  // of the model
  const RequestOptions options_;
  ServingMetrics* const metrics_;
  const EmbeddingListener listener_;
  const absl::Time arrival_ = absl::Now();

  absl::Mutex mutex_;
  std::vector<std::vector<int>> inputs_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<size_t, AsyncEngine::Ticket> tickets_ ABSL_GUARDED_BY(mutex_);
  v1::EmbedReply reply_;  // used under mutex_
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // the listener has been or will not be called
};

}  // namespace

absl::StatusOr<std::shared_ptr<Generation>> StartEmbedding(v1::EmbedRequest request,
                                                           ModelServer::Target target,
                                                           ServingMetrics* metrics,
                                                           EmbeddingListener listener) {
  const LoadedModel& model = *target.model;
  absl::Status status =
      CheckEmbedRequest(request, model.engine->embedding_size(), model.description.name());
  if (!status.ok()) return status;
  std::vector<std::vector<int>> inputs;
  for (int i = 0; i < request.inputs_size(); ++i) {
    absl::StatusOr<std::vector<int>> tokens = TokensOf(request, i, model);
    if (!tokens.ok()) return tokens.status();
    inputs.push_back(*std::move(tokens));
  }
  const absl::StatusOr<int> adapter = AdapterIndex(model.description, target.adapter);
  if (!adapter.ok()) return adapter.status();
  RequestOptions options;
  options.embed = true;
  options.group_started = std::make_shared<std::atomic<bool>>(false);
  options.adapter = *adapter;
  options.priority = request.priority();
  options.cache_salt = request.cache_salt();
  options.timeout_seconds = request.timeout_seconds();
  auto running =
      std::make_shared<EmbeddingGeneration>(std::move(request), target, std::move(options),
                                            std::move(inputs), metrics, std::move(listener));
  status = running->Start();
  if (!status.ok()) return status;
  return running;
}

}  // namespace espalier
