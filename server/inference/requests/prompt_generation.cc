#include "server/inference/requests/prompt_generation.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "serving/sampling/counter_rng.h"

namespace espalier {
namespace {

constexpr double kMinTimeoutSeconds = 1e-6;  // for expired requests; 0 would mean no timeout

v1::TokenLogprobs LogprobsToProto(const TokenLogprobs& logprobs, const Tokenizer& tokenizer) {
  v1::TokenLogprobs out;
  out.set_token(logprobs.token);
  out.set_logprob(logprobs.logprob);
  out.set_rank(logprobs.rank);
  out.set_text(tokenizer.TokenBytes(logprobs.token));
  for (const auto& [token, logprob] : logprobs.top) {
    v1::TopLogprob* top = out.add_top();
    top->set_token(token);
    top->set_logprob(logprob);
    top->set_text(tokenizer.TokenBytes(token));
  }
  return out;
}

class PromptGenerationImpl : public PromptGeneration,
                             public std::enable_shared_from_this<PromptGenerationImpl> {
 public:
  PromptGenerationImpl(const GenerationContext& context, GenerationListener listener,
                       std::string echo, const std::optional<OutputParserOptions>& parser_options)
      : shared_request_(context.request),
        request_(*shared_request_),
        options_(context.options),
        has_request_stops_(context.has_request_stops),
        name_(context.model_name),
        tokenizer_(context.engine->shared_tokenizer()),
        model_(context.model),
        engine_(*context.engine),
        metrics_(context.metrics),
        listener_(std::move(listener)),
        n_(std::max(1, request_.n())),
        echo_(std::move(echo)),
        answers_(AnswersPerPrompt(request_)) {
    if (!parser_options) return;
    const ReasoningTags& marks = parser_options->reasoning;
    if (!marks.empty()) {
      opens_reasoning_ = tokenizer_->TokenId(marks.open);
      closes_reasoning_ = tokenizer_->TokenId(marks.close);
    }
    for (size_t i = 0; i < answers_.size(); ++i) {
      OutputParserOptions own = *parser_options;
      absl::StrAppend(&own.id, "-", i);
      own.short_id += i * 0xD1B54A32D192ED03ull;
      answers_[i].parser.emplace(std::move(own));
      answers_[i].in_reasoning = parser_options->begins_in_reasoning;
    }
  }

  absl::Status Submit(std::vector<int> tokens, uint64_t seed, absl::Time arrival) override {
    const double waited = absl::ToDoubleSeconds(absl::Now() - arrival);
    const auto shared = std::make_shared<const std::vector<int>>(std::move(tokens));
    const std::vector<int>& prompt = *shared;
    first_token_ = prompt.empty() ? -1 : prompt[0];
    if (request_.return_prompt_tokens()) prompt_ = prompt;
    for (size_t i = 0; i < answers_.size(); ++i) {
      RequestOptions own = *options_;
      // best_of ranks answers by mean logprob.
      if (selects_best()) own.logprobs = std::max(own.logprobs, 0);
      own.sampling.seed = ChoiceSeed(seed, i);
      own.reproducible = request_.sampling().has_seed();
      if (own.timeout_seconds > 0) {
        own.timeout_seconds = std::max(own.timeout_seconds - waited, kMinTimeoutSeconds);
      }
      // Events wait for the lock until the ticket is stored: one may have to cancel its request.
      absl::MutexLock lock(&mutex_);
      // An earlier answer was rejected, and the listener would not hear of this one.
      if (listener_done_) break;
      absl::StatusOr<AsyncEngine::Ticket> ticket = engine_.Submit(
          shared, std::move(own), [self = shared_from_this(), i](const RequestEvent& event) {
            self->On(static_cast<int>(i), event);
          });
      if (!ticket.ok()) {
        listener_done_ = true;
        CancelAll();
        return ticket.status();
      }
      tickets_.push_back(*ticket);
      if (cancelled_) CancelAll();
    }
    return absl::OkStatus();
  }

  void Cancel() override {
    // Weak: a connected client must not keep an unloaded model alive. Released without the lock:
    // dropping the last reference joins the engine's thread, which may want the lock.
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
  struct Answer {
    std::optional<OutputParser> parser;  // of a chat
    bool in_reasoning = false;
    bool begun = false;
    bool stopped_early = false;  // cancelled, since the rest would be dropped
    v1::GenerateReply whole;     // collected for best_of
    double logprobs = 0;         // sum
    int tokens = 0;

    double mean_logprob() const { return tokens > 0 ? logprobs / tokens : -1e30; }
  };

  bool selects_best() const { return static_cast<int>(answers_.size()) > n_; }

  // Called on the engine's thread, which the engine outlives, or by an owner of the model.
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const AsyncEngine::Ticket ticket : tickets_) engine_.Cancel(ticket);
  }

  // Cancels an answer whose remaining text would be dropped.
  void StopEarly(int index) {
    absl::MutexLock lock(&mutex_);
    engine_.Cancel(tickets_[index]);
    answers_[index].stopped_early = true;
  }

  // The rest runs on the engine's thread only.

  void On(int index, const RequestEvent& event) {
    if (answers_[index].stopped_early && event.reason == FinishReason::kCancelled) {
      RequestEvent stopped = event;
      stopped.reason = FinishReason::kStop;
      return On(index, stopped);
    }
    if (metrics_ != nullptr) {
      metrics_->RequestProgressed(name_, event);
      if (event.finished) CountEnd(event);
    }
    {
      absl::MutexLock lock(&mutex_);
      if (listener_done_) return;
      if (event.reason == FinishReason::kError) {
        listener_done_ = true;
        CancelAll();
      }
    }
    if (event.reason == FinishReason::kError) {
      listener_(event.error, true);
      return;
    }
    if (event.finished) Count(event.usage);
    Answer& answer = answers_[index];
    v1::GenerateReply reply = ReplyOf(event, &answer);
    if (answer.parser && answer.parser->done() && !answer.stopped_early && !event.finished)
      StopEarly(index);
    if (!selects_best()) {
      reply.set_index(index);
      Send(std::move(reply), finished_ == static_cast<int>(answers_.size()));
      return;
    }
    for (const TokenLogprobs& logprobs : event.logprobs) {
      answer.logprobs += logprobs.logprob;
      ++answer.tokens;
    }
    for (v1::ToolCall& call : *reply.mutable_tool_calls()) {
      call.set_text_before(static_cast<int>(answer.whole.text().size()) + call.text_before());
    }
    answer.whole.mutable_text()->append(reply.text());
    answer.whole.mutable_reasoning()->append(reply.reasoning());
    reply.clear_text();
    reply.clear_reasoning();
    if (!request_.has_logprobs()) reply.clear_logprobs();
    answer.whole.MergeFrom(reply);
    if (finished_ == static_cast<int>(answers_.size())) SendBest();
  }

  void CountEnd(const RequestEvent& event) {
    metrics_->RequestFinished(name_, request_, event);
    longest_ = std::max(longest_, event.usage.completion_tokens);
    if (++ended_ == answers_.size()) metrics_->AnswersFinished(name_, request_, longest_);
  }

  // Adds the event's new text, parsed if it is a chat's.
  void AddText(const RequestEvent& event, Answer* answer, v1::GenerateReply* reply) {
    if (!answer->parser) {
      reply->mutable_text()->append(event.text);
      return;
    }
    const auto add = [reply](OutputDelta part) {
      const size_t before = reply->text().size();
      reply->mutable_text()->append(part.text);
      reply->mutable_reasoning()->append(part.reasoning);
      for (ToolCallDelta& call : part.calls) {
        v1::ToolCall* out = reply->add_tool_calls();
        out->set_index(call.index);
        out->set_id(std::move(call.id));
        out->set_name(std::move(call.name));
        out->set_arguments(std::move(call.arguments));
        out->set_text_before(static_cast<int>(before + call.text_before));
      }
    };
    CountReasoning(event, answer);
    add(answer->parser->Append(event.text));
    if (event.finished) add(answer->parser->Finish());
  }

  // Counts the event's reasoning tokens, before its text is parsed.
  void CountReasoning(const RequestEvent& event, Answer* answer) {
    if (opens_reasoning_ < 0 || closes_reasoning_ < 0) return;
    const bool over = answer->parser->reasoning_ended();
    int count = 0;
    for (const int token : event.tokens) {
      if (token == opens_reasoning_ && !over) answer->in_reasoning = true;
      if (answer->in_reasoning) ++count;
      if (token == closes_reasoning_) answer->in_reasoning = false;
    }
    usage_.set_reasoning_tokens(usage_.reasoning_tokens() + count);
  }

  v1::GenerateReply ReplyOf(const RequestEvent& event, Answer* answer) {
    v1::GenerateReply reply;
    if (!std::exchange(answer->begun, true)) {
      reply.set_text(echo_);
      reply.mutable_prompt_tokens()->Assign(prompt_.begin(), prompt_.end());
      if (!event.prompt_logprobs.empty() || (request_.echo() && request_.has_logprobs()) ||
          request_.has_prompt_logprobs()) {
        v1::TokenLogprobs* first = reply.add_prompt_logprobs();
        first->set_token(first_token_);
        first->set_text(tokenizer_->TokenBytes(first_token_));
      }
      for (const TokenLogprobs& logprobs : event.prompt_logprobs) {
        *reply.add_prompt_logprobs() = LogprobsToProto(logprobs, *tokenizer_);
      }
    }
    if (!request_.prompt_only()) {
      AddText(event, answer, &reply);
      reply.mutable_tokens()->Assign(event.tokens.begin(), event.tokens.end());
      for (const TokenLogprobs& logprobs : event.logprobs) {
        *reply.add_logprobs() = LogprobsToProto(logprobs, *tokenizer_);
      }
    }
    if (!event.finished) return reply;
    reply.set_finish_reason(request_.prompt_only()          ? "length"
                            : EndsWithCalls(event, *answer) ? "tool_calls"
                                                            : Name(event.reason));
    // A stop string of the model's own config counts as an ordinary end.
    if (has_request_stops_ && !event.stop.text.empty()) reply.set_stop_string(event.stop.text);
    if (EndsAtRequestedToken(event)) reply.set_stop_token(event.stop.token);
    return reply;
  }

  bool EndsAtRequestedToken(const RequestEvent& event) const {
    const auto& stops = request_.stop_token_ids();
    return std::find(stops.begin(), stops.end(), event.stop.token) != stops.end();
  }

  // Whether the finished answer made calls that a client can execute. A call whose arguments did
  // not end is none; neither is an answer whose next call a stop string or token cut off.
  bool EndsWithCalls(const RequestEvent& event, const Answer& answer) const {
    if (!answer.parser || !answer.parser->has_tool_calls()) return false;
    const bool cut = !event.stop.text.empty() || EndsAtRequestedToken(event);
    switch (answer.parser->unfinished_call()) {
      case UnfinishedCall::kArguments:
        return false;
      case UnfinishedCall::kHead:
        if (cut) return false;
        break;
      case UnfinishedCall::kNone:
        break;
    }
    return event.reason == FinishReason::kStop || answer.parser->done();
  }

  void SendBest() {
    std::vector<int> order(answers_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::stable_sort(order.begin(), order.end(), [this](int a, int b) {
      return answers_[a].mean_logprob() > answers_[b].mean_logprob();
    });
    for (int i = 0; i < n_; ++i) {
      v1::GenerateReply& reply = answers_[order[i]].whole;
      reply.set_index(i);
      Send(std::move(reply), i + 1 == n_);
    }
  }

  void Send(v1::GenerateReply reply, bool last) {
    if (last) *reply.mutable_usage() = usage_;
    listener_(std::move(reply), last);
  }

  void Count(const Usage& usage) {
    const bool first = finished_++ == 0;
    usage_.set_prompt_tokens(usage.prompt_tokens);
    usage_.set_completion_tokens(usage_.completion_tokens() +
                                 (request_.prompt_only() ? 0 : usage.completion_tokens));
    usage_.set_drafted_tokens(usage_.drafted_tokens() + usage.drafted_tokens);
    usage_.set_accepted_tokens(usage_.accepted_tokens() + usage.accepted_tokens);
    usage_.set_verification_steps(usage_.verification_steps() + usage.verification_steps);
    const double soonest =
        first ? usage.seconds_to_first_token
              : std::min(usage_.seconds_to_first_token(), usage.seconds_to_first_token);
    usage_.set_seconds_to_first_token(soonest);
    usage_.set_seconds(std::max(usage_.seconds(), usage.seconds));
    // Answers find what the first one computed in the cache.
    usage_.set_cached_tokens(first ? usage.cached_tokens
                                   : std::min(usage_.cached_tokens(), usage.cached_tokens));
    usage_.set_seconds_queued(std::max(usage_.seconds_queued(), usage.seconds_queued));
  }

  const std::shared_ptr<const v1::GenerateRequest> shared_request_;
  const v1::GenerateRequest& request_;
  const std::shared_ptr<const RequestOptions> options_;
  const bool has_request_stops_;
  const std::string name_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::weak_ptr<LoadedModel> model_;
  AsyncEngine& engine_;  // of the model
  ServingMetrics* const metrics_;
  const GenerationListener listener_;
  const int n_;
  const std::string echo_;
  std::vector<int> prompt_;  // if requested
  int first_token_ = -1;
  int opens_reasoning_ = -1, closes_reasoning_ = -1;  // token IDs; -1: none

  std::vector<Answer> answers_;
  int finished_ = 0;
  size_t ended_ = 0;  // answers that have ended in any way
  int longest_ = 0;   // of the answers, in tokens
  v1::Usage usage_;

  absl::Mutex mutex_;
  std::vector<AsyncEngine::Ticket> tickets_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool listener_done_ ABSL_GUARDED_BY(mutex_) = false;  // the listener has had its last call
};

}  // namespace

size_t AnswersPerPrompt(const v1::GenerateRequest& request) {
  return static_cast<size_t>(std::max({1, request.n(), request.best_of()}));
}

std::shared_ptr<PromptGeneration> NewPromptGeneration(
    const GenerationContext& context, GenerationListener listener, std::string echo,
    const std::optional<OutputParserOptions>& parser_options) {
  return std::make_shared<PromptGenerationImpl>(context, std::move(listener), std::move(echo),
                                                parser_options);
}

}  // namespace espalier
