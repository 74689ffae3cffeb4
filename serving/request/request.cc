#include "serving/request/request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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

absl::Status ValidateOptions(const RequestOptions& options) {
  if (options.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", options.max_tokens, ", expected 1 or more"));
  }
  if (absl::Status status = ValidateStopStrings(options.stop); !status.ok()) return status;
  return ValidateSampling(options.sampling);
}

Request::Request(RequestId id, std::vector<int> prompt, RequestOptions options,
                 const Tokenizer& tokenizer)
    : id_(id),
      options_(std::move(options)),
      tokenizer_(tokenizer),
      tokens_(std::move(prompt)),
      taken_(static_cast<int>(tokens_.size())),
      decoder_(tokenizer.NewStreamDecoder()),
      stops_(options_.stop) {
  usage_.prompt_tokens = static_cast<int>(tokens_.size());
}

int Request::Remaining(int max_length) const {
  return std::min(options_.max_tokens - emitted(), max_length - length());
}

void Request::Emit(int token, int max_length) {
  phase_ = Phase::kDecoding;
  tokens_.push_back(token);
  ++usage_.completion_tokens;
  const std::vector<int>& eos = tokenizer_.eos();
  const bool ends = std::find(eos.begin(), eos.end(), token) != eos.end();
  if (!ends) text_ += stops_.Append(decoder_->Append(token));
  if ((ends && !options_.ignore_eos) || stops_.stopped()) {
    Finish(FinishReason::kStop);
  } else if (Remaining(max_length) <= 0) {
    Finish(FinishReason::kLength);
  }
}

bool Request::Finish(FinishReason reason) {
  if (phase_ == Phase::kFinished) return false;
  phase_ = Phase::kFinished;
  finish_reason_ = reason;
  text_ += stops_.Append(decoder_->Flush());
  text_ += stops_.Flush();
  return true;
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
