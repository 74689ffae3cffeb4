// One generation request and its life:
//
//   waiting -> prefilling -> decoding -> finished
//      ^___________|____________|           (preempted: back to waiting, to be computed again)
//
// and from every state but finished to finished (cancelled, error). The request owns its tokens,
// its text and its usage; slots of KV caches belong to the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "serving/request/stop_strings.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/logprobs.h"
#include "serving/sampling/logits_processor.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

using RequestId = int64_t;

enum class Phase { kWaiting, kPrefilling, kDecoding, kFinished };

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// "stop", "length", "cancelled", "error"; "" for kNone.
const char* Name(FinishReason reason);

struct RequestOptions {
  int max_tokens = 16;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool speculate = true;  // use draft trees if the engine has SSMs
  SamplingParameters sampling;
  // The seed was asked for: the answer must be the same whatever else is served, and however it is
  // drafted. Otherwise only its law is the model's.
  bool reproducible = true;
  std::shared_ptr<const LogitsProcessorOptions> logits_processor;  // null: none
  std::vector<int> stop_token_ids;          // end the answer, as an end of sequence does
  bool include_stop = false;         // the stop string or token that ends the answer is in its text
  bool show_special_tokens = false;  // special tokens have text
  std::vector<int> shown_tokens;     // special tokens that have text all the same
  int logprobs = -1;         // most probable tokens reported for each of the answer; -1: none
  int prompt_logprobs = -1;  // the same for the prompt's, from the second on
  int priority = 0;          // lower ones first
  // Shared by the requests that one client's call is made of, which are worth nothing without each
  // other: the engine sets it once one of them has begun. From then on none of them is refused, or
  // gives its place to others, however many wait. Null: it is alone.
  std::shared_ptr<std::atomic<bool>> group_started;
  double timeout_seconds = 0;  // from when it came; 0: none
  int adapter = -1;            // index of one of the LLM's; -1: none
  std::string cache_salt;      // K and V of prefixes are shared with requests of the same one only
  // No answer is wanted but the prompt's embedding: the LLM's hidden state at its last token. The
  // request ends with kStop; options that shape an answer have no effect.
  bool embed = false;

  // Something would be lost if it were refused.
  bool admission_guaranteed() const { return group_started != nullptr && *group_started; }
};

// InvalidArgument naming the field and what it accepts.
absl::Status ValidateOptions(const RequestOptions& options, int vocabulary);

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;       // of the prompt, whose K and V an earlier request had left
  int completion_tokens = 0;   // an end-of-sequence token counts
  int drafted_tokens = 0;      // tree nodes that the LLM verified
  int accepted_tokens = 0;     // of those, the ones in the answer
  int verification_steps = 0;  // steps of the LLM that yielded tokens, but for the prompt's own
  double seconds_to_first_token = 0;
  double seconds = 0;
  double seconds_queued = 0;
};

// What ended an answer with kStop: a token, a stop string, or neither (its grammar's end).
struct StopCause {
  int token = -1;
  std::string text;
};

class Request {
 public:
  // `options` passed ValidateOptions, `prompt` is not empty. `tokenizer` must outlive the request.
  Request(RequestId id, std::vector<int> prompt, RequestOptions options,
          const Tokenizer& tokenizer);

  RequestId id() const { return id_; }
  const RequestOptions& options() const { return options_; }
  Phase phase() const { return phase_; }
  FinishReason finish_reason() const { return finish_reason_; }
  // Prompt and answer so far. The last one is not yet in a KV cache while decoding.
  absl::Span<const int> tokens() const { return tokens_; }
  int length() const { return static_cast<int>(tokens_.size()); }
  int emitted() const { return length() - usage_.prompt_tokens; }
  const Usage& usage() const { return usage_; }
  Usage& usage() { return usage_; }

  // Tokens that may still come, in a context of `max_length` tokens.
  int Remaining(int max_length) const;

  void Admit() { phase_ = Phase::kPrefilling; }
  void Preempt() { phase_ = Phase::kWaiting; }

  // Adds one token of the answer. Finishes the request if the token is an end of sequence (unless
  // ignored) or a stop token, completes a stop string or what the rules' constraint describes, or
  // is the last that max_tokens or the context allows; with kError if the constraint forbids it.
  // `logprobs` (optional) are reported with it. REQUIRES: not finished.
  void Emit(int token, int max_length, const TokenLogprobs* logprobs = nullptr);

  // What its rules do to the logits of the next tokens.
  const LogitsProcessor& logits_processor() const { return logits_processor_; }

  // Whether the log-probabilities of the token behind this position of the prompt are still to be
  // given to AddPromptLogprobs, which takes them in order, none left out: or the logits that they
  // come from.
  bool WantsPromptLogits(int position) const {
    return options_.prompt_logprobs >= 0 && position >= prompt_logprobs_known_ &&
           position + 1 < usage_.prompt_tokens;
  }
  void AddPromptLogprobs(const float* logits, int vocabulary);
  void AddPromptLogprobs(TokenLogprobs logprobs);

  // Ends the request, once: later calls change nothing. True if this one did. With kLength the
  // reason becomes kStop if text that was held back until now completes a stop string.
  bool Finish(FinishReason reason);

  // What was added since the last call: tokens, and text that is certain (see StopStrings).
  std::vector<int> TakeTokens();
  std::string TakeText();
  std::vector<TokenLogprobs> TakeLogprobs() { return std::exchange(logprobs_, {}); }
  std::vector<TokenLogprobs> TakePromptLogprobs() { return std::exchange(prompt_logprobs_, {}); }

  const StopCause& stop_cause() const { return stop_cause_; }
  // Why it ended by itself with kError.
  const absl::Status& error() const { return error_; }

 private:
  // The tokens that end the answer.
  static std::vector<int> Enders(const RequestOptions& options, const Tokenizer& tokenizer);

  // As far as its stop strings leave it.
  void AddText(const std::string& piece);

  RequestId id_;
  RequestOptions options_;
  const Tokenizer& tokenizer_;
  std::vector<int> tokens_;
  int taken_ = 0;  // tokens that TakeTokens gave
  Phase phase_ = Phase::kWaiting;
  FinishReason finish_reason_ = FinishReason::kNone;
  Usage usage_;
  std::unique_ptr<StreamDecoder> decoder_;
  StopStrings stops_;
  std::string text_;
  LogitsProcessor logits_processor_;
  std::vector<TokenLogprobs> logprobs_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  int prompt_logprobs_known_ = 0;  // positions whose logits came; they stay known after preemption
  StopCause stop_cause_;
  absl::Status error_;
};

}  // namespace espalier
