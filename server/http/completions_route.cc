#include "server/http/completions_route.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/http/openai_response.h"
#include "server/http/request_id.h"
#include "server/http/send_error.h"
#include "server/inference/requests/generation.h"

namespace espalier {
namespace {

constexpr char kJson[] = "application/json";

// All choices of one HTTP request, streamed or whole. Replies come on the engine's thread, which
// must not block here, possibly before Accept is called.
class CompletionResponse : public std::enable_shared_from_this<CompletionResponse> {
 public:
  CompletionResponse(openai::Head head, openai::Request request, size_t prompts,
                     std::shared_ptr<HttpResponder> responder,
                     const std::shared_ptr<SerializationThread>& large)
      : head_(std::move(head)),
        request_(std::move(request)),
        per_prompt_(std::max(1, request_.generate.n())),
        prompts_(std::max(1, static_cast<int>(prompts))),
        responder_(std::move(responder)),
        serialization_thread_(large),
        tasks_(large) {
    for (int i = 0; i < per_prompt_ * prompts_; ++i) {
      openai::ChoicePart part;
      part.index = i;
      part.with_logprobs = request_.generate.has_logprobs();
      part.with_prompt_logprobs = request_.generate.has_prompt_logprobs();
      part.with_tokens = request_.return_token_ids;
      part.tokens_as_ids = request_.tokens_as_ids;
      choices_.push_back({.form = part, .whole = part});
      if (!request_.stream) choices_.back().whole.text = request_.echo;
    }
  }

  BatchListener Listener() {
    return [self = shared_from_this()](int prompt, const absl::StatusOr<v1::GenerateReply>& reply,
                                       bool last) {
      const auto step = [self](int prompt, const absl::StatusOr<v1::GenerateReply>& reply,
                               bool last) {
        self->mutex_.AssertHeld();
        self->OnReply(prompt, reply, last);
      };
      // A whole answer is only collected here; Complete serializes it.
      const bool large = self->request_.stream && reply.ok() && ListedIn(*reply) > kMaxInlineSize;
      self->tasks_.Run(large, self->mutex_, step, prompt, reply, last);
    };
  }

  // REQUIRES: the caller holds the model.
  void Accept(std::shared_ptr<Generation> generation) {
    absl::MutexLock lock(&mutex_);
    if (over_) {
      generation->Cancel();
    } else {
      running_ = std::move(generation);
    }
  }

  // Reports a failed submission.
  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    End(status);
  }

  // Cancels without the lock: dropping the last reference to an unloaded model joins the engine's
  // thread, which may want the lock.
  void Cancel() {
    std::shared_ptr<Generation> running;
    {
      absl::MutexLock lock(&mutex_);
      over_ = true;
      running = std::exchange(running_, nullptr);
    }
    if (running != nullptr) running->Cancel();
  }

 private:
  struct ChoiceState {
    openai::ChoicePart form;   // fields that all parts share
    openai::ChoicePart whole;  // unless streamed: all parts so far
    bool begun = false;
  };

  static size_t ListedIn(const v1::GenerateReply& reply) {
    return static_cast<size_t>(reply.logprobs_size()) +
           static_cast<size_t>(reply.prompt_logprobs_size()) +
           static_cast<size_t>(reply.tokens_size()) +
           static_cast<size_t>(reply.prompt_tokens_size());
  }

  // Before the first byte an error sets the status line, afterwards it is an event. The generation
  // refers to this answer, so the answer drops it at the end.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (over_) return;
    over_ = true;
    running_.reset();
    if (!started_) {
      SendError(*responder_, status);
      return;
    }
    new_ += openai::ErrorChunk(openai::FromStatus(status));
    Flush();
    responder_->End();
  }

  void OnReply(int prompt, const absl::StatusOr<v1::GenerateReply>& reply, bool last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (over_) return;
    if (!reply.ok()) {
      End(reply.status());
      return;
    }
    ChoiceState& choice = choices_[prompt * per_prompt_ + reply->index()];
    openai::ChoicePart part = PartOf(*reply, choice);
    CountSoFar(prompt, *reply);
    if (request_.stream) {
      Stream(part, choice);
    } else {
      Collect(std::move(part), choice);
    }
    if (last) {
      Count(reply->usage());
      if (++ended_ == prompts_) return Complete();
    }
    Flush();
  }

  // Writes in one piece, which may be of any size; many pieces would look like a client that does
  // not read.
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!new_.empty()) responder_->Write(std::exchange(new_, ""));
  }

  // `logprobs` and `prompt_logprobs` may ask for different numbers of alternatives.
  static std::vector<v1::TokenLogprobs> OfPrompt(const v1::GenerateReply& reply, int top) {
    std::vector<v1::TokenLogprobs> out = {reply.prompt_logprobs().begin(),
                                          reply.prompt_logprobs().end()};
    for (v1::TokenLogprobs& token : out) {
      if (token.top_size() > top) token.mutable_top()->DeleteSubrange(top, token.top_size() - top);
    }
    return out;
  }

  openai::ChoicePart PartOf(const v1::GenerateReply& reply, const ChoiceState& choice) {
    openai::ChoicePart part = choice.form;
    part.finish_reason = reply.finish_reason();
    if (!part.finish_reason.empty()) {
      if (reply.has_stop_token()) part.stop_token = reply.stop_token();
      part.stop_string = reply.stop_string();
    }
    part.text = reply.text();
    if (request_.include_reasoning) part.reasoning = reply.reasoning();
    part.tool_calls = {reply.tool_calls().begin(), reply.tool_calls().end()};
    if (part.with_tokens) {
      part.prompt_tokens = {reply.prompt_tokens().begin(), reply.prompt_tokens().end()};
      part.tokens = {reply.tokens().begin(), reply.tokens().end()};
    }
    if (part.with_prompt_logprobs) {
      part.prompt_logprobs = OfPrompt(reply, request_.generate.prompt_logprobs());
    }
    if (part.with_logprobs && request_.generate.echo()) {
      part.logprobs = OfPrompt(reply, request_.generate.logprobs());
    }
    part.logprobs.insert(part.logprobs.end(), reply.logprobs().begin(), reply.logprobs().end());
    return part;
  }

  void Collect(openai::ChoicePart part, ChoiceState& choice) {
    openai::ChoicePart& whole = choice.whole;
    const auto append = [](auto& to, auto& from) {
      to.insert(to.end(), std::make_move_iterator(from.begin()),
                std::make_move_iterator(from.end()));
    };
    whole.text += part.text;
    whole.reasoning += part.reasoning;
    append(whole.logprobs, part.logprobs);
    append(whole.prompt_logprobs, part.prompt_logprobs);
    append(whole.prompt_tokens, part.prompt_tokens);
    append(whole.tokens, part.tokens);
    for (v1::ToolCall& call : part.tool_calls) {
      if (!call.id().empty()) {
        whole.tool_calls.push_back(std::move(call));
      } else {
        whole.tool_calls.back().mutable_arguments()->append(call.arguments());
      }
    }
    whole.finish_reason = std::move(part.finish_reason);
    whole.stop_token = part.stop_token;
    whole.stop_string = std::move(part.stop_string);
  }

  void Stream(const openai::ChoicePart& part, ChoiceState& choice)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!started_) {
      started_ = true;
      responder_->StartStream(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
    }
    const v1::Usage* const so_far = request_.usage_in_every_chunk ? &so_far_ : nullptr;
    if (!std::exchange(choice.begun, true)) {
      new_ += openai::RoleChunk(head_, part.index, so_far);
      if (!request_.echo.empty()) {
        openai::ChoicePart echo;
        echo.index = part.index;
        echo.text = request_.echo;
        new_ += openai::Chunk(head_, echo, so_far);
      }
    }
    const bool empty = part.text.empty() && part.reasoning.empty() && part.tool_calls.empty() &&
                       part.logprobs.empty() && part.prompt_logprobs.empty() &&
                       part.tokens.empty() && part.prompt_tokens.empty() &&
                       part.finish_reason.empty();
    if (!empty) new_ += openai::Chunk(head_, part, so_far);
    choice.form.text_offset += openai::CharactersOf(part);
  }

  void CountSoFar(int prompt, const v1::GenerateReply& reply) {
    // Every answer of a prompt carries its tokens.
    if (reply.prompt_tokens_size() > 0 && counted_.insert(prompt).second) {
      so_far_.set_prompt_tokens(so_far_.prompt_tokens() + reply.prompt_tokens_size());
    }
    so_far_.set_completion_tokens(so_far_.completion_tokens() + reply.tokens_size());
  }

  void Count(const v1::Usage& usage) {
    usage_.set_prompt_tokens(usage_.prompt_tokens() + usage.prompt_tokens());
    usage_.set_completion_tokens(usage_.completion_tokens() + usage.completion_tokens());
    usage_.set_drafted_tokens(usage_.drafted_tokens() + usage.drafted_tokens());
    usage_.set_accepted_tokens(usage_.accepted_tokens() + usage.accepted_tokens());
    usage_.set_verification_steps(usage_.verification_steps() + usage.verification_steps());
    usage_.set_cached_tokens(usage_.cached_tokens() + usage.cached_tokens());
    if (usage.has_reasoning_tokens()) {
      usage_.set_reasoning_tokens(usage_.reasoning_tokens() + usage.reasoning_tokens());
    }
  }

  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    over_ = true;
    running_.reset();
    if (request_.stream) {
      if (request_.include_usage) new_ += openai::UsageChunk(head_, usage_);
      new_ += openai::kDone;
      Flush();
      responder_->End();
      return;
    }
    auto parts = std::make_shared<std::vector<openai::ChoicePart>>();
    size_t listed = 0;
    for (ChoiceState& choice : choices_) {
      const openai::ChoicePart& part = parts->emplace_back(std::move(choice.whole));
      listed += part.logprobs.size() + part.prompt_logprobs.size() + part.tokens.size() +
                part.prompt_tokens.size();
    }
    auto send = [responder = responder_, head = head_, parts, usage = usage_] {
      responder->Send(200, kJson, openai::WholeAnswer(head, *parts, usage));
    };
    // Work on the thread must not own the thread.
    const auto large = tasks_.on_thread() ? nullptr : serialization_thread_.lock();
    if (listed > kMaxInlineSize && large != nullptr) {
      large->Run(std::move(send));
    } else {
      send();
    }
  }

  const openai::Head head_;
  const openai::Request request_;
  const int per_prompt_;
  const int prompts_;
  const std::shared_ptr<HttpResponder> responder_;
  const std::weak_ptr<SerializationThread> serialization_thread_;
  TaskSequence tasks_;  // replies, in order

  absl::Mutex mutex_;
  std::vector<ChoiceState> choices_;  // used under mutex_
  v1::Usage usage_;                   // used under mutex_: prompts that have ended
  v1::Usage so_far_;                  // used under mutex_: running count by replies
  std::set<int> counted_;             // used under mutex_: prompts in so_far_
  std::shared_ptr<Generation> running_ ABSL_GUARDED_BY(mutex_);
  std::string new_ ABSL_GUARDED_BY(mutex_);  // stream data not written yet
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void Generate(openai::Kind kind, const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder) {
  openai::Request request;
  if (const auto error = openai::Parse(kind, http.body, &request)) {
    SendError(*responder, *error);
    return;
  }
  openai::ReadRequestIdHeader(http.headers, &request.id);
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = ModelOf(*context.models, &request.generate);
  if (!model.ok()) {
    SendError(*responder, model.status());
    return;
  }
  SetDefaultTemperature(**model, &request.generate);
  const std::string id = request.id.empty() ? context.id : request.id;
  responder = WithRequestId(std::move(responder), id);
  openai::Head head{.kind = kind,
                    .id = absl::StrCat(kind == openai::Kind::kChat ? "chatcmpl-" : "cmpl-", id),
                    .created_unix_seconds = context.clock->NowUnixMillis() / 1000,
                    .model = request.generate.model(),
                    .usage_in_chunks = request.include_usage,
                    .service_tier = request.service_tier};
  // CompletionResponse lives as long as the request. Keep only the fields that shape the answer,
  // since the request may be large.
  const auto prompts = std::exchange(request.prompts, {});
  v1::GenerateRequest asked;
  asked.Swap(&request.generate);
  request.generate.set_n(asked.n());
  request.generate.set_echo(asked.echo());
  if (asked.has_logprobs()) request.generate.set_logprobs(asked.logprobs());
  if (asked.has_prompt_logprobs()) {
    request.generate.set_prompt_logprobs(asked.prompt_logprobs());
  }
  auto answer = std::make_shared<CompletionResponse>(
      std::move(head), std::move(request), prompts.size(), responder, context.serialization_thread);
  const BatchListener listener = answer->Listener();
  absl::StatusOr<std::shared_ptr<Generation>> generation =
      kind == openai::Kind::kCompletion
          ? StartBatch(asked, prompts, *model, context.models, context.metrics, listener)
          : StartGeneration(asked, *model, context.models, context.metrics,
                            [listener](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
                              listener(0, reply, last);
                            });
  if (!generation.ok()) {
    answer->Fail(generation.status());
    return;
  }
  answer->Accept(*std::move(generation));
  responder->OnClose([weak = std::weak_ptr<CompletionResponse>(answer)] {
    if (auto answer = weak.lock()) answer->Cancel();
  });
}

}  // namespace espalier
