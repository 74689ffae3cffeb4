#include "server/inference/requests/generation_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/generation.h"
#include "server/inference/requests/tool_choice.h"
#include "serving/grammar/thinking_budget.h"

namespace espalier {
namespace {

constexpr int kDefaultMaxTokens = 16;

// A word has different tokens at the start of a text and after a space; bans both.
absl::Status AddBadWord(const std::string& word, const Tokenizer& tokenizer,
                        LogitsProcessorOptions* rules) {
  if (word.empty()) return FieldError("bad_words", "bad_words: a word is empty");
  if (word.size() > kMaxBadWordBytes) {
    return FieldError("bad_words", absl::StrCat("bad_words: a word has ", word.size(),
                                                " bytes, expected at most ", kMaxBadWordBytes));
  }
  for (const std::string& text : {word, absl::StrCat(" ", word)}) {
    absl::StatusOr<std::vector<int>> tokens = tokenizer.TryEncode(text, {});
    if (!tokens.ok()) return InvalidContent("bad_words", "word", tokens.status());
    const auto& known = rules->bad_words;
    if (!tokens->empty() && std::find(known.begin(), known.end(), *tokens) == known.end()) {
      rules->bad_words.push_back(*std::move(tokens));
    }
  }
  return absl::OkStatus();
}

// Returns null if the request ignores the model's generation config.
const GenerationConfig* ConfigOf(const LoadedModel& model) {
  return model.description.generation_config() == "none" ? nullptr : &model.engine->generation();
}

// Bad words of the model's config always apply.
void AddBadWords(const GenerationConfig& config, int vocabulary, LogitsProcessorOptions* rules) {
  for (const std::vector<int>& word : config.bad_words) {
    const bool known =
        std::all_of(word.begin(), word.end(), [&](int token) { return token < vocabulary; });
    if (known) rules->bad_words.push_back(word);
  }
}

// Checks sizes before any entry is processed.
absl::Status CheckCounts(const v1::SamplingOptions& sampling) {
  if (sampling.logit_bias_size() > kMaxLogitBiases) {
    return FieldError("logit_bias", absl::StrCat("logit_bias has ", sampling.logit_bias_size(),
                                                 " entries, expected at most ", kMaxLogitBiases));
  }
  size_t bytes = 0;
  for (const std::string& word : sampling.bad_words()) bytes += word.size();
  if (sampling.bad_words_size() > kMaxBadWords || bytes > kMaxBadWordsBytes) {
    return FieldError("bad_words",
                      absl::StrCat("bad_words has ", sampling.bad_words_size(), " words of ", bytes,
                                   " bytes together, expected at most ", kMaxBadWords, " of ",
                                   kMaxBadWordsBytes, " bytes"));
  }
  return absl::OkStatus();
}

StructuralTag StructuralTagOf(const v1::StructuralTag& tag) {
  StructuralTag text;
  for (const v1::StructuralTag::Structure& structure : tag.structures()) {
    text.sections.push_back(
        {.open = structure.begin(),
         .items = {{.schema = structure.json_schema(), .end = structure.end()}}});
  }
  text.triggers = {tag.triggers().begin(), tag.triggers().end()};
  return text;
}

absl::StatusOr<StructuredOutput> FormatOf(const v1::StructuralTag& tag) {
  if (tag.structures_size() > 0 || tag.triggers_size() > 0) {
    return FieldError("response_format",
                      "structural_tag: a format excludes structures and triggers");
  }
  return StructuredOutput{.kind = StructuredOutput::kXgrammarStructuralTag, .text = tag.format()};
}

absl::StatusOr<std::optional<StructuredOutput>> ContentConstraint(
    const v1::GenerateRequest& request) {
  if (!request.has_structured_output()) return std::nullopt;
  const v1::StructuredOutput& output = request.structured_output();
  switch (output.kind_case()) {
    case v1::StructuredOutput::kRegex:
      return StructuredOutput{.kind = StructuredOutput::kRegex, .text = output.regex()};
    case v1::StructuredOutput::kJsonSchema:
      return StructuredOutput{.kind = StructuredOutput::kJsonSchema, .text = output.json_schema()};
    case v1::StructuredOutput::kGrammar:
      return StructuredOutput{.kind = StructuredOutput::kGbnf, .text = output.grammar()};
    case v1::StructuredOutput::kChoice:
      return StructuredOutput{
          .kind = StructuredOutput::kChoice,
          .choices = {output.choice().texts().begin(), output.choice().texts().end()}};
    case v1::StructuredOutput::kStructuralTag:
      if (!output.structural_tag().format().empty()) return FormatOf(output.structural_tag());
      return StructuredOutput{.kind = StructuredOutput::kStructuralTag,
                              .structural_tag = StructuralTagOf(output.structural_tag())};
    default:
      if (output.json_object()) return StructuredOutput{.kind = StructuredOutput::kJsonObject};
      return FieldError(
          "response_format",
          "structured_output: one of regex, json_schema, json_object, grammar, choice and "
          "structural_tag is wanted");
  }
}

ReasoningPrefix ReasoningPrefixOf(const Prompt& prompt) {
  return {prompt.reasoning.open, prompt.reasoning.close, prompt.begins_in_reasoning};
}

// Permits reasoning before the constrained part. Reasoning that counts as answer text falls under
// the constraint, unless the prompt has opened it.
StructuredOutput AllowReasoningBefore(const Prompt& prompt, const v1::GenerateRequest& request,
                                      StructuredOutput constraint) {
  if (prompt.begins_in_reasoning ||
      (!prompt.reasoning.empty() && !request.chat().reasoning_in_text())) {
    constraint.reasoning = ReasoningPrefixOf(prompt);
  }
  return constraint;
}

// Returns the special tokens that delimit parts of a chat's answer.
std::vector<int> SpecialTokensShown(const v1::GenerateRequest& request, const Prompt& prompt,
                                    const Tokenizer& tokenizer) {
  std::vector<std::string> marks;
  if (!prompt.reasoning.empty()) marks = {prompt.reasoning.open, prompt.reasoning.close};
  if (request.has_chat() && ToolChoiceOf(request.chat()) == ToolChoice::kAuto) {
    for (const ToolCallParser::Section& section : prompt.tool_parser->sections()) {
      marks.push_back(section.open);
      if (!section.close.empty()) marks.push_back(section.close);
    }
    for (std::string& mark : prompt.tool_parser->inner_special_tokens())
      marks.push_back(std::move(mark));
  }
  std::vector<int> tokens;
  for (const std::string& mark : marks) {
    const int token = tokenizer.TokenId(mark);
    if (token >= 0 && tokenizer.IsSpecial(token)) tokens.push_back(token);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

// Compiles the constraint on the whole answer. Null: unconstrained.
absl::StatusOr<std::shared_ptr<TokenMasker>> CompileConstraint(const v1::GenerateRequest& request,
                                                               const LoadedModel& model,
                                                               const Prompt& prompt,
                                                               const std::vector<Tool>& tools,
                                                               const std::vector<int>& shown) {
  absl::StatusOr<std::optional<StructuredOutput>> content = ContentConstraint(request);
  if (!content.ok()) return content.status();
  std::optional<StructuredOutput> constraint = *content;
  if (request.has_chat()) {
    absl::StatusOr<std::optional<StructuredOutput>> answer =
        AnswerConstraint(tools, *prompt.tool_parser, request.chat(), *content);
    if (!answer.ok()) return answer.status();
    constraint = *std::move(answer);
  }
  if (!constraint) return nullptr;
  absl::StatusOr<std::shared_ptr<TokenMasker>> masker =
      model.grammars->Get(AllowReasoningBefore(prompt, request, *constraint), shown);
  if (masker.ok() && constraint == *content) return masker;
  // Validates the text's constraint even if the answer will have no text.
  if (*content && (!masker.ok() || constraint->alternatives.empty())) {
    const absl::StatusOr<Grammar> text = GrammarOf(**content);
    if (!text.ok()) return InField("response_format", text.status());
  }
  if (!masker.ok())
    return InField(constraint == *content ? "response_format" : "tools", masker.status());
  return masker;
}

absl::StatusOr<std::shared_ptr<const LogitsProcessorOptions>> ToLogitsProcessorOptions(
    const v1::GenerateRequest& request, const LoadedModel& model, const Prompt& prompt,
    const std::vector<Tool>& tools, const std::vector<int>& shown, int max_tokens) {
  const v1::SamplingOptions& sampling = request.sampling();
  auto rules = std::make_shared<LogitsProcessorOptions>();
  if (sampling.repetition_penalty() != 0) rules->repetition_penalty = sampling.repetition_penalty();
  rules->presence_penalty = sampling.presence_penalty();
  rules->frequency_penalty = sampling.frequency_penalty();
  rules->min_tokens = sampling.min_tokens();
  const GenerationConfig* const config = ConfigOf(model);
  // A request with its own stops does not wait for the model's min_new_tokens.
  const bool names_ends = request.stop_size() > 0 || request.stop_token_ids_size() > 0;
  if (!sampling.has_min_tokens() && !names_ends && config != nullptr) {
    rules->min_tokens = std::min(config->min_new_tokens, max_tokens);
  }
  if (absl::Status status = CheckCounts(sampling); !status.ok()) return status;
  for (const auto& [token, bias] : sampling.logit_bias()) {
    rules->logit_bias.emplace_back(token, bias);
  }
  // Map order differs between runs.
  std::sort(rules->logit_bias.begin(), rules->logit_bias.end());
  rules->allowed = {sampling.allowed_token_ids().begin(), sampling.allowed_token_ids().end()};
  // Unique, so that there are no more than the vocabulary has.
  std::sort(rules->allowed.begin(), rules->allowed.end());
  rules->allowed.erase(std::unique(rules->allowed.begin(), rules->allowed.end()),
                       rules->allowed.end());
  rules->allowed.shrink_to_fit();
  const int vocabulary = model.engine->tokenizer().vocabulary();
  if (rules->allowed.size() > static_cast<size_t>(vocabulary)) {
    return FieldError("allowed_token_ids",
                      absl::StrCat("allowed_token_ids has ", rules->allowed.size(),
                                   " different tokens, the vocabulary ", vocabulary));
  }
  if (config != nullptr) AddBadWords(*config, vocabulary, rules.get());
  for (const std::string& word : sampling.bad_words()) {
    absl::Status status = AddBadWord(word, model.engine->tokenizer(), rules.get());
    if (!status.ok()) return status;
  }
  absl::StatusOr<std::shared_ptr<TokenMasker>> constraint =
      CompileConstraint(request, model, prompt, tools, shown);
  if (!constraint.ok()) return constraint.status();
  rules->constraint = *std::move(constraint);
  if (request.chat().has_thinking_token_budget() && !prompt.reasoning.empty()) {
    auto budget =
        ThinkingBudget::Create(ReasoningPrefixOf(prompt), request.chat().thinking_token_budget(),
                               model.engine->shared_tokenizer(), std::move(rules->constraint));
    if (!budget.ok()) return InField("thinking_token_budget", budget.status());
    rules->constraint = *std::move(budget);
  }
  return std::shared_ptr<const LogitsProcessorOptions>(std::move(rules));
}

}  // namespace

absl::Status CheckSpeculation(const v1::GenerateRequest& request, const LoadedModel& model,
                              size_t prompt_tokens) {
  if (request.speculation() != v1::SPECULATION_ON) return absl::OkStatus();
  if (model.description.ssm_artifacts().empty() && model.description.ngram_depth() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "field 'speculation' is on, but model '", request.model(),
        "' is served without SSMs and n-gram drafts; serve it with some, or leave the field out"));
  }
  const absl::Status status = CheckDrafting(model, prompt_tokens);
  if (status.ok()) return status;
  return absl::FailedPreconditionError(absl::StrCat("field 'speculation' is on, but ",
                                                    status.message(), ", or leave the field out"));
}

absl::StatusOr<RequestOptions> ToRequestOptions(const v1::GenerateRequest& request,
                                                const LoadedModel& model, const Prompt& prompt,
                                                const std::vector<Tool>& tools) {
  const absl::StatusOr<int> adapter = AdapterIndex(model.description, request.adapter());
  if (!adapter.ok()) return adapter.status();
  const GenerationConfig* const config = ConfigOf(model);
  RequestOptions options;
  options.adapter = *adapter;
  options.max_tokens = request.max_tokens();
  if (options.max_tokens == 0) {
    // Chats default to the rest of the context.
    options.max_tokens =
        request.has_chat()
            ? std::max(1, model.engine->context() - static_cast<int>(prompt.tokens.size()))
            : kDefaultMaxTokens;
    if (config != nullptr && config->max_new_tokens) {
      options.max_tokens = std::min(options.max_tokens, *config->max_new_tokens);
    }
  }
  if (request.prompt_only()) options.max_tokens = 1;
  options.stop = {request.stop().begin(), request.stop().end()};
  if (options.stop.empty() && config != nullptr && !request.ignore_eos()) {
    options.stop = config->stop_strings;
  }
  // The engine checks this, too, but per answer.
  if (absl::Status status = ValidateStopStrings(options.stop); !status.ok()) {
    return InField("stop", status);
  }
  options.stop_token_ids = {request.stop_token_ids().begin(), request.stop_token_ids().end()};
  options.include_stop = request.include_stop();
  options.ignore_eos = request.ignore_eos();
  options.show_special_tokens = request.show_special_tokens();
  options.shown_tokens = SpecialTokensShown(request, prompt, model.engine->tokenizer());
  options.speculate = request.speculation() != v1::SPECULATION_OFF;
  options.priority = request.priority();
  options.cache_salt = request.cache_salt();
  options.timeout_seconds = request.timeout_seconds();
  if (request.has_logprobs()) options.logprobs = request.logprobs();
  if (request.has_prompt_logprobs()) options.prompt_logprobs = request.prompt_logprobs();
  if (request.echo() && request.has_logprobs()) {
    options.prompt_logprobs = std::max(options.prompt_logprobs, request.logprobs());
  }
  if (options.logprobs < -1 || options.prompt_logprobs < -1) {
    return FieldError("logprobs", "logprobs and prompt_logprobs must be 0 or more");
  }
  const v1::SamplingOptions& sampling = request.sampling();
  options.sampling.temperature = sampling.temperature();
  options.sampling.top_p = sampling.top_p() == 0 ? 1 : sampling.top_p();
  options.sampling.top_k = sampling.top_k();
  options.sampling.min_p = sampling.min_p();
  options.sampling.typical_p = sampling.typical_p() == 0 ? 1 : sampling.typical_p();
  absl::StatusOr<std::shared_ptr<const LogitsProcessorOptions>> rules = ToLogitsProcessorOptions(
      request, model, prompt, tools, options.shown_tokens, options.max_tokens);
  if (!rules.ok()) return rules.status();
  options.logits_processor = *std::move(rules);
  return options;
}

}  // namespace espalier
