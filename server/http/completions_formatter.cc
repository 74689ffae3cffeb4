#include "server/http/completions_formatter.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace espalier::openai {
namespace {

// `logprobs` and `prompt_logprobs` may ask for different numbers of alternatives.
std::vector<v1::TokenLogprobs> PromptLogprobsOf(const v1::GenerateReply& reply, int top) {
  std::vector<v1::TokenLogprobs> out = {reply.prompt_logprobs().begin(),
                                        reply.prompt_logprobs().end()};
  for (v1::TokenLogprobs& token : out) {
    if (token.top_size() > top) token.mutable_top()->DeleteSubrange(top, token.top_size() - top);
  }
  return out;
}

template <typename T>
void Append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

bool IsEmpty(const ChoicePart& part) {
  return part.text.empty() && part.reasoning.empty() && part.tool_calls.empty() &&
         part.logprobs.empty() && part.prompt_logprobs.empty() && part.tokens.empty() &&
         part.prompt_tokens.empty() && part.finish_reason.empty();
}

}  // namespace

CompletionShape ShapeOf(const Request& request) {
  CompletionShape shape{.prompts = std::max(1, static_cast<int>(request.prompts.size())),
                        .choices_per_prompt = std::max(1, request.generate.n()),
                        .echo_prompt = request.generate.echo(),
                        .echo_text = request.echo,
                        .include_reasoning = request.include_reasoning,
                        .include_usage = request.include_usage,
                        .usage_in_every_chunk = request.usage_in_every_chunk,
                        .return_token_ids = request.return_token_ids,
                        .tokens_as_ids = request.tokens_as_ids};
  if (request.generate.has_logprobs()) shape.logprobs = request.generate.logprobs();
  if (request.generate.has_prompt_logprobs()) {
    shape.prompt_logprobs = request.generate.prompt_logprobs();
  }
  return shape;
}

CompletionsFormatter::CompletionsFormatter(Head head, CompletionShape shape, bool streams)
    : ResponseFormatter(streams), head_(std::move(head)), shape_(std::move(shape)) {
  const int choices = shape_.prompts * shape_.choices_per_prompt;
  if (streams) {
    streamed_.resize(choices);
    return;
  }
  for (int i = 0; i < choices; ++i) {
    collected_.push_back(EmptyPart(i));
    collected_.back().text = shape_.echo_text;
  }
}

// A whole answer is only collected until its end; an event repeats nothing.
size_t CompletionsFormatter::CountValues(const v1::GenerateReply* reply, bool last) {
  if (reply == nullptr) return 0;
  size_t values = static_cast<size_t>(reply->logprobs_size()) +
                  static_cast<size_t>(reply->prompt_logprobs_size());
  if (shape_.return_token_ids) {
    values += static_cast<size_t>(reply->tokens_size()) +
              static_cast<size_t>(reply->prompt_tokens_size());
  }
  if (streams()) return values;
  values_collected_ += values;
  return last ? values_collected_ : 0;
}

void CompletionsFormatter::Add(int prompt, const v1::GenerateReply& reply) {
  ChoicePart part = PartOf(prompt * shape_.choices_per_prompt + reply.index(), reply);
  CountSoFar(prompt, reply);
  if (streams()) {
    Stream(std::move(part));
  } else {
    Collect(std::move(part));
  }
  if (reply.has_usage()) CountUsage(reply.usage());
}

void CompletionsFormatter::Finish(const v1::GenerateReply&, int64_t) {
  over_ = true;
  if (shape_.include_usage) AddChunk(UsageChunk(head_, usage_));
  AddChunk(kDone);
}

void CompletionsFormatter::Fail(const Error& error) {
  over_ = true;
  AddChunk(ErrorChunk(error));
}

nlohmann::ordered_json CompletionsFormatter::Object() const {
  return WholeAnswer(head_, collected_, usage_);
}

ChoicePart CompletionsFormatter::EmptyPart(int index) const {
  ChoicePart part;
  part.index = index;
  part.with_logprobs = shape_.logprobs.has_value();
  part.with_prompt_logprobs = shape_.prompt_logprobs.has_value();
  part.with_tokens = shape_.return_token_ids;
  part.tokens_as_ids = shape_.tokens_as_ids;
  return part;
}

ChoicePart CompletionsFormatter::PartOf(int index, const v1::GenerateReply& reply) const {
  ChoicePart part = EmptyPart(index);
  part.finish_reason = reply.finish_reason();
  if (!part.finish_reason.empty()) {
    if (reply.has_stop_token()) part.stop_token = reply.stop_token();
    part.stop_string = reply.stop_string();
  }
  part.text = reply.text();
  if (shape_.include_reasoning) part.reasoning = reply.reasoning();
  part.tool_calls = {reply.tool_calls().begin(), reply.tool_calls().end()};
  if (part.with_tokens) {
    part.prompt_tokens = {reply.prompt_tokens().begin(), reply.prompt_tokens().end()};
    part.tokens = {reply.tokens().begin(), reply.tokens().end()};
  }
  if (part.with_prompt_logprobs) {
    part.prompt_logprobs = PromptLogprobsOf(reply, *shape_.prompt_logprobs);
  }
  if (part.with_logprobs && shape_.echo_prompt) {
    part.logprobs = PromptLogprobsOf(reply, *shape_.logprobs);
  }
  part.logprobs.insert(part.logprobs.end(), reply.logprobs().begin(), reply.logprobs().end());
  return part;
}

void CompletionsFormatter::Collect(ChoicePart part) {
  ChoicePart& whole = collected_[part.index];
  whole.text += part.text;
  whole.reasoning += part.reasoning;
  Append(whole.logprobs, part.logprobs);
  Append(whole.prompt_logprobs, part.prompt_logprobs);
  Append(whole.prompt_tokens, part.prompt_tokens);
  Append(whole.tokens, part.tokens);
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

void CompletionsFormatter::Stream(ChoicePart part) {
  StreamedChoice& choice = streamed_[part.index];
  const v1::Usage* const so_far = shape_.usage_in_every_chunk ? &so_far_ : nullptr;
  if (!std::exchange(choice.begun, true)) {
    AddChunk(RoleChunk(head_, part.index, so_far));
    if (!shape_.echo_text.empty()) {
      ChoicePart echo;
      echo.index = part.index;
      echo.text = shape_.echo_text;
      AddChunk(Chunk(head_, echo, so_far));
    }
  }
  part.text_offset = choice.text_offset;
  if (!IsEmpty(part)) AddChunk(Chunk(head_, part, so_far));
  choice.text_offset += CharactersOf(part);
}

void CompletionsFormatter::AddChunk(std::string chunk) {
  if (streams() && !chunk.empty()) AddEvent(std::move(chunk));
}

void CompletionsFormatter::CountSoFar(int prompt, const v1::GenerateReply& reply) {
  // Every choice of a prompt repeats its tokens.
  if (reply.prompt_tokens_size() > 0 && counted_prompts_.insert(prompt).second) {
    so_far_.set_prompt_tokens(so_far_.prompt_tokens() + reply.prompt_tokens_size());
  }
  so_far_.set_completion_tokens(so_far_.completion_tokens() + reply.tokens_size());
}

void CompletionsFormatter::CountUsage(const v1::Usage& usage) {
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

}  // namespace espalier::openai
