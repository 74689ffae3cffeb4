#include "server/inference/requests/generation.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/inference/field_error.h"
#include "server/inference/models/sampling_defaults.h"
#include "server/inference/requests/chat_prompt.h"
#include "server/inference/requests/generation_options.h"
#include "server/inference/requests/prompt_generation.h"
#include "server/inference/requests/tool_choice.h"
#include "serving/output_parsers/output_parser.h"

namespace espalier {
namespace {

// All answers to a prompt are submitted at once; a queue too small for them never fits them.
absl::Status CheckQueue(const v1::GenerateRequest& request, int max_queue) {
  const size_t answers = AnswersPerPrompt(request);
  if (answers <= static_cast<size_t>(max_queue)) return absl::OkStatus();
  const char* const field = request.best_of() > request.n() ? "best_of" : "n";
  return FieldError(field,
                    absl::StrCat("field '", field, "' is ", answers, ", but the model's queue has ",
                                 max_queue, " places (max_queue); ask for fewer answers"));
}

absl::Status CheckGenerateRequest(const v1::GenerateRequest& request, const LoadedModel& model) {
  for (const auto& [name, value] :
       {std::pair<const char*, int>{"n", request.n()}, {"best_of", request.best_of()}}) {
    if (value < 0 || value > kMaxAnswers) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", value, ", expected 1 to ", kMaxAnswers));
    }
  }
  if (request.best_of() > 0 && request.best_of() < request.n()) {
    return absl::InvalidArgumentError(
        absl::StrCat("best_of is ", request.best_of(), ", less than n, which is ", request.n()));
  }
  if (!v1::Speculation_IsValid(request.speculation())) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'speculation' is ", request.speculation(), ", which is not known"));
  }
  if (request.chat().thinking_token_budget() < 0) {
    return FieldError("thinking_token_budget",
                      absl::StrCat("field 'thinking_token_budget' is ",
                                   request.chat().thinking_token_budget(), ", expected 0 or more"));
  }
  if (request.echo() && request.has_chat()) {
    return absl::InvalidArgumentError("echo is for text and token prompts, not for chats");
  }
  if (request.prompt_only() && !request.echo()) {
    return absl::InvalidArgumentError("without an answer there is nothing to return but an echo");
  }
  return CheckQueue(request, model.engine->max_queue());
}

// Checked early: the engine would only reject it on its thread, once per answer.
absl::Status CheckLength(const v1::GenerateRequest& request, size_t tokens, int context) {
  if (tokens < static_cast<size_t>(context)) return absl::OkStatus();
  return FieldError(request.has_chat() ? "messages" : "prompt",
                    absl::StrCat("the prompt has ", tokens, " tokens, the context ", context,
                                 ", of which at least one is for the answer"));
}

}  // namespace

int MaxPromptTokens(int context, int max_tokens) {
  return std::max(1, context - std::clamp(max_tokens, 1, std::max(1, context / 2)));
}

absl::StatusOr<Prompt> PromptOf(const v1::GenerateRequest& request, const LoadedModel& model) {
  Prompt prompt;
  if (request.has_chat()) {
    absl::StatusOr<Prompt> chat =
        RenderChat(request.chat(), model.engine->tokenizer(), model.engine->chat(), model.clock);
    if (!chat.ok()) return InvalidContent("messages", "conversation", chat.status());
    prompt = *std::move(chat);
  } else if (request.has_tokens()) {
    prompt.tokens = {request.tokens().ids().begin(), request.tokens().ids().end()};
  } else {
    absl::StatusOr<std::vector<int>> tokens = model.engine->tokenizer().TryEncode(
        request.text(), {.add_special = !request.no_special_tokens(), .parse_special = true});
    if (!tokens.ok()) return InvalidContent("prompt", "text", tokens.status());
    prompt.tokens = *std::move(tokens);
  }
  int most = request.truncate_prompt_tokens();
  if (most < -1) {
    return FieldError(
        "truncate_prompt_tokens",
        absl::StrCat("truncate_prompt_tokens is ", most,
                     ", expected 1 or more, or -1 for what the context has room for"));
  }
  if (most == -1) most = MaxPromptTokens(model.engine->context(), request.max_tokens());
  if (most > 0 && static_cast<int>(prompt.tokens.size()) > most) {
    prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.end() - most);
  }
  return prompt;
}

namespace {

OutputParserOptions ToOutputParserOptions(const v1::GenerateRequest& request, const Prompt& prompt,
                                          std::vector<Tool> tools, ModelServer* models) {
  const v1::ChatPrompt& chat = request.chat();
  OutputParserOptions options;
  if (!chat.reasoning_in_text()) {
    options.reasoning = prompt.reasoning;
    options.begins_in_reasoning = prompt.begins_in_reasoning;
  }
  options.tool_parser = prompt.tool_parser;
  options.tools = std::move(tools);
  options.choice = ToolChoiceOf(chat);
  options.text_is_constrained =
      request.has_structured_output() && !request.structured_output().has_structural_tag();
  options.named_tool = chat.named_tool();
  options.single_call = chat.single_tool_call();
  if (options.choice != ToolChoice::kNone) options.short_id = models->NextSeed();
  options.id = absl::StrCat("call_", absl::Hex(options.short_id, absl::kZeroPad16));
  return options;
}

// Upper bound for a prompt of `length` tokens and its answers.
int64_t CountLogprobs(const v1::GenerateRequest& request, const RequestOptions& options,
                      size_t length, int context) {
  const auto each = [](int top) -> int64_t { return top < 0 ? 0 : std::max(1, top); };
  const int64_t prompt = static_cast<int64_t>(length);
  const int64_t answer = std::min<int64_t>(options.max_tokens, context - prompt);
  return static_cast<int64_t>(AnswersPerPrompt(request)) *
         (answer * each(options.logprobs) + prompt * each(options.prompt_logprobs));
}

absl::Status CheckLogprobs(const RequestOptions& options, int64_t logprobs) {
  if (logprobs <= kMaxLogprobs) return absl::OkStatus();
  return FieldError(
      options.logprobs >= 0 ? "logprobs" : "prompt_logprobs",
      absl::StrCat("of all tokens of prompts and answers together up to ", logprobs,
                   " log-probabilities are asked for, expected at most ", kMaxLogprobs,
                   ": lower max_tokens, n, or how many there are of each token"));
}

GenerationContext ContextOf(v1::GenerateRequest request, RequestOptions options,
                            const std::shared_ptr<LoadedModel>& model, ServingMetrics* metrics) {
  const bool has_request_stops = request.stop_size() > 0;
  // The request lives as long as its answers; drop large fields that `options` covers or that are
  // no longer needed.
  request.clear_prompt();
  request.clear_stop();
  request.clear_structured_output();
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  sampling.clear_logit_bias();
  sampling.clear_allowed_token_ids();
  sampling.clear_bad_words();
  options.group_started = std::make_shared<std::atomic<bool>>(false);
  return {.request = std::make_shared<const v1::GenerateRequest>(std::move(request)),
          .options = std::make_shared<const RequestOptions>(std::move(options)),
          .has_request_stops = has_request_stops,
          .model = model,
          .model_name = model->description.name(),
          .engine = model->engine.get(),
          .metrics = metrics};
}

std::string EchoOf(const v1::GenerateRequest& request, const std::vector<int>& tokens,
                   const LoadedModel& model) {
  return request.has_text() ? request.text() : model.engine->tokenizer().Decode(tokens);
}

uint64_t SeedOf(const v1::GenerateRequest& request, ModelServer* models) {
  return request.sampling().has_seed() ? request.sampling().seed() : models->NextSeed();
}

// The prompts of one request. Submits only as many at once as the queue holds, and the next as
// these end.
class Batch : public Generation, public std::enable_shared_from_this<Batch> {
 public:
  struct Waiting {
    std::vector<int> tokens;
    std::string echo;
    uint64_t seed = 0;
  };

  Batch(GenerationContext context, std::deque<Waiting> waiting, BatchListener listener)
      : context_(std::move(context)),
        max_concurrent_prompts_(
            MaxConcurrentPrompts(*context_.engine, AnswersPerPrompt(*context_.request))),
        listener_(std::move(listener)),
        waiting_(std::move(waiting)) {}

  // REQUIRES: the caller holds the model.
  absl::Status Start() {
    absl::MutexLock lock(&mutex_);
    absl::Status status;
    for (int i = 0; status.ok() && i < max_concurrent_prompts_; ++i) status = SubmitNext();
    if (!status.ok()) End();
    return status;
  }

  void Cancel() override {
    // Weak, as in PromptGeneration.
    const std::shared_ptr<LoadedModel> model = context_.model.lock();
    if (model == nullptr) return;
    Stop();
  }

  void Stop() override {
    absl::MutexLock lock(&mutex_);
    End();
  }

 private:
  static int MaxConcurrentPrompts(const AsyncEngine& engine, size_t answers) {
    const int each = static_cast<int>(answers);
    const int wanted = (engine.max_concurrent() + each - 1) / each;
    return std::max(1, std::min(wanted, engine.max_queue() / each));
  }

  absl::Status SubmitNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (over_ || waiting_.empty()) return absl::OkStatus();
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    const int prompt = next_++;
    const auto run = NewPromptGeneration(
        context_,
        [self = shared_from_this(), prompt](const absl::StatusOr<v1::GenerateReply>& reply,
                                            bool last) { self->On(prompt, reply, last); },
        std::move(next.echo), std::nullopt);
    runs_[prompt] = run;
    return run->Submit(std::move(next.tokens), next.seed, arrival_);
  }

  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    over_ = true;
    waiting_.clear();
    // They refer to this batch, so drop them at the end.
    for (const auto& [prompt, run] : std::exchange(runs_, {})) run->Stop();
  }

  // Runs on the engine's thread, which the engine outlives.
  void On(int prompt, const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
    {
      absl::MutexLock lock(&mutex_);
      if (over_) return;
    }
    // Without the lock: the listener may call Stop.
    listener_(prompt, reply, last);
    if (!last) return;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      runs_.erase(prompt);
      status = reply.ok() ? SubmitNext() : reply.status();
      if (!status.ok()) End();
    }
    if (reply.ok() && !status.ok()) listener_(prompt, status, true);
  }

  const GenerationContext context_;
  const int max_concurrent_prompts_;  // prompts
  const absl::Time arrival_ = absl::Now();
  const BatchListener listener_;

  absl::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<Generation>> runs_ ABSL_GUARDED_BY(mutex_);
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Generation>> StartGeneration(const v1::GenerateRequest& given,
                                                            std::shared_ptr<LoadedModel> model,
                                                            ModelServer* models,
                                                            ServingMetrics* metrics,
                                                            GenerationListener listener) {
  v1::GenerateRequest request = given;
  FillSampling(model->description.sampling_defaults(), request.mutable_sampling());
  if (absl::Status status = CheckGenerateRequest(request, *model); !status.ok()) return status;
  std::vector<Tool> tools;
  if (request.has_chat()) {
    absl::StatusOr<std::vector<Tool>> known = ToolsOf(request.chat());
    if (!known.ok()) return known.status();
    tools = *std::move(known);
  }
  absl::StatusOr<Prompt> prompt = PromptOf(request, *model);
  if (!prompt.ok()) return prompt.status();
  if (absl::Status status = CheckLength(request, prompt->tokens.size(), model->engine->context());
      !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckSpeculation(request, *model, prompt->tokens.size());
      !status.ok()) {
    return status;
  }
  absl::StatusOr<RequestOptions> options = ToRequestOptions(request, *model, *prompt, tools);
  if (!options.ok()) return options.status();
  absl::Status few = CheckLogprobs(
      *options, CountLogprobs(request, *options, prompt->tokens.size(), model->engine->context()));
  if (!few.ok()) return few;
  const uint64_t seed = SeedOf(request, models);
  std::string echo = request.echo() ? EchoOf(request, prompt->tokens, *model) : "";
  std::optional<OutputParserOptions> parser_options;
  if (request.has_chat())
    parser_options = ToOutputParserOptions(request, *prompt, std::move(tools), models);
  const auto run =
      NewPromptGeneration(ContextOf(std::move(request), *std::move(options), model, metrics),
                          std::move(listener), std::move(echo), parser_options);
  absl::Status status = run->Submit(std::move(prompt->tokens), seed, absl::Now());
  if (!status.ok()) return status;
  return run;
}

absl::StatusOr<std::shared_ptr<Generation>> StartBatch(
    const v1::GenerateRequest& given, const std::vector<v1::GenerateRequest>& prompts,
    std::shared_ptr<LoadedModel> model, ModelServer* models, ServingMetrics* metrics,
    BatchListener listener) {
  v1::GenerateRequest request = given;
  FillSampling(model->description.sampling_defaults(), request.mutable_sampling());
  if (absl::Status status = CheckGenerateRequest(request, *model); !status.ok()) return status;
  absl::StatusOr<RequestOptions> options = ToRequestOptions(request, *model, Prompt(), {});
  if (!options.ok()) return options.status();
  std::deque<Batch::Waiting> waiting;
  int64_t logprobs = 0;
  for (v1::GenerateRequest prompt : prompts) {
    // All fields that PromptOf reads; others may be large.
    prompt.set_max_tokens(request.max_tokens());
    prompt.set_no_special_tokens(request.no_special_tokens());
    prompt.set_truncate_prompt_tokens(request.truncate_prompt_tokens());
    absl::StatusOr<Prompt> read = PromptOf(prompt, *model);
    if (!read.ok()) return read.status();
    absl::Status status = CheckLength(prompt, read->tokens.size(), model->engine->context());
    if (status.ok()) status = CheckSpeculation(request, *model, read->tokens.size());
    if (!status.ok()) return status;
    logprobs += CountLogprobs(request, *options, read->tokens.size(), model->engine->context());
    waiting.push_back({.echo = request.echo() ? EchoOf(prompt, read->tokens, *model) : "",
                       .seed = SeedOf(request, models)});
    waiting.back().tokens = std::move(read->tokens);
  }
  if (absl::Status status = CheckLogprobs(*options, logprobs); !status.ok()) return status;
  auto batch =
      std::make_shared<Batch>(ContextOf(std::move(request), *std::move(options), model, metrics),
                              std::move(waiting), std::move(listener));
  if (absl::Status status = batch->Start(); !status.ok()) return status;
  return batch;
}

}  // namespace espalier
