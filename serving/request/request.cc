#include "serving/request/request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/request/detokenizer.h"

namespace espalier {

const char* Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

namespace {

// Far more than any model has.
constexpr size_t kMostStopTokens = 1024;
constexpr double kLongestTimeout = 7 * 24 * 3600.0;

absl::Status CheckLogprobs(absl::string_view field, int value, int vocabulary) {
  const int most = std::min(kMaxTopLogprobs, vocabulary);
  if (value >= -1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected -1 (none) to ", most));
}

bool Contains(const std::vector<int>& list, int token) {
  return std::find(list.begin(), list.end(), token) != list.end();
}

}  // namespace

absl::Status ValidateOptions(const RequestOptions& options, int vocabulary) {
  if (options.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", options.max_tokens, ", expected 1 or more"));
  }
  if (options.stop_token_ids.size() > kMostStopTokens) {
    return absl::InvalidArgumentError(absl::StrCat("stop_token_ids has ",
                                                   options.stop_token_ids.size(),
                                                   " tokens, expected at most ", kMostStopTokens));
  }
  for (const int token : options.stop_token_ids) {
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop_token_ids names token ", token, ", the vocabulary has ", vocabulary));
    }
  }
  if (!(options.timeout_seconds >= 0 && options.timeout_seconds <= kLongestTimeout)) {
    return absl::InvalidArgumentError(absl::StrCat("timeout is ", options.timeout_seconds,
                                                   " s, expected 0 (none) to ", kLongestTimeout));
  }
  if (options.cache_salt.size() > kLongestSalt) {
    return absl::InvalidArgumentError(absl::StrCat("cache_salt has ", options.cache_salt.size(),
                                                   " bytes, expected at most ", kLongestSalt));
  }
  absl::Status status = ValidateStopStrings(options.stop);
  status.Update(ValidateSampling(options.sampling));
  status.Update(CheckLogprobs("logprobs", options.logprobs, vocabulary));
  status.Update(CheckLogprobs("prompt_logprobs", options.prompt_logprobs, vocabulary));
  if (options.logits_processor == nullptr) return status;
  status.Update(ValidateLogitsProcessor(*options.logits_processor, vocabulary));
  if (options.logits_processor->min_tokens > options.max_tokens) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("min_tokens is ", options.logits_processor->min_tokens,
                     ", more than max_tokens, ", options.max_tokens)));
  }
  if (options.logits_processor->constraint != nullptr && options.ignore_eos) {
    status.Update(absl::InvalidArgumentError(
        "ignore_eos would go on after the end of a structured output; leave one of them out"));
  }
  return status;
}

Request::Request(RequestId id, std::vector<int> prompt, RequestOptions options,
                 const Tokenizer& tokenizer)
    : id_(id),
      options_(std::move(options)),
      tokenizer_(tokenizer),
      tokens_(std::move(prompt)),
      taken_(static_cast<int>(tokens_.size())),
      decoder_(
          NewDetokenizer(tokenizer, tokens_, options_.show_special_tokens, options_.shown_tokens)),
      stops_(options_.stop, options_.include_stop),
      logits_processor_(options_.logits_processor, tokens_, Enders(options_, tokenizer)) {
  usage_.prompt_tokens = static_cast<int>(tokens_.size());
}

std::vector<int> Request::Enders(const RequestOptions& options, const Tokenizer& tokenizer) {
  std::vector<int> enders = options.stop_token_ids;
  if (!options.ignore_eos) {
    enders.insert(enders.end(), tokenizer.eos().begin(), tokenizer.eos().end());
  }
  return enders;
}

int Request::Remaining(int max_length) const {
  return std::min(options_.max_tokens - emitted(), max_length - length());
}

void Request::Emit(int token, int max_length, const TokenLogprobs* logprobs) {
  phase_ = Phase::kDecoding;
  tokens_.push_back(token);
  ++usage_.completion_tokens;
  if (logprobs != nullptr) logprobs_.push_back(*logprobs);
  const bool eos = Contains(tokenizer_.eos(), token);
  const bool ends = (eos && !options_.ignore_eos) || Contains(options_.stop_token_ids, token);
  const bool silent = (ends && !options_.include_stop) || (eos && !options_.show_special_tokens);
  if (!silent) {
    AddText(decoder_->Append(token));
  }
  error_ = logits_processor_.Append(token);
  if (!error_.ok()) {
    Finish(FinishReason::kError);
  } else if (ends) {
    stop_cause_.token = token;
    Finish(FinishReason::kStop);
  } else if (stops_.stopped() || logits_processor_.complete()) {
    Finish(FinishReason::kStop);
  } else if (Remaining(max_length) <= 0) {
    Finish(FinishReason::kLength);
  }
}

void Request::AddPromptLogprobs(const float* logits, int vocabulary) {
  const int token = tokens_[prompt_logprobs_known_ + 1];
  AddPromptLogprobs(LogprobsOf(logits, vocabulary, token, options_.prompt_logprobs));
}

void Request::AddPromptLogprobs(TokenLogprobs logprobs) {
  ++prompt_logprobs_known_;
  prompt_logprobs_.push_back(std::move(logprobs));
}

bool Request::Finish(FinishReason reason) {
  if (phase_ == Phase::kFinished) return false;
  phase_ = Phase::kFinished;
  finish_reason_ = reason;
  AddText(decoder_->Flush());
  text_ += stops_.Flush();
  // Text that the detokenizer held back may contain a stop string, which came before the end.
  if (stops_.stopped() && (reason == FinishReason::kStop || reason == FinishReason::kLength)) {
    finish_reason_ = FinishReason::kStop;
    stop_cause_ = {.text = stops_.found()};
  }
  return true;
}

void Request::AddText(const std::string& piece) {
  // The output cannot end before min_tokens, so its text until then is neither searched nor held
  // back.
  const int min_tokens =
      options_.logits_processor != nullptr ? options_.logits_processor->min_tokens : 0;
  text_ += emitted() < min_tokens ? piece : stops_.Append(piece);
}

std::vector<int> Request::TakeTokens() {
  std::vector<int> out(tokens_.begin() + taken_, tokens_.end());
  taken_ = length();
  return out;
}

std::string Request::TakeText() {
  std::string out;
  out.swap(text_);
  return out;
}

}  // namespace espalier
