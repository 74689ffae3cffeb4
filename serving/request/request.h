// One generation request and its state:
//
//   waiting -> prefilling -> decoding -> finished
//      ^___________|____________|           (preempted: back to waiting, to be recomputed)
//
// and from every state to finished (cancelled, error). The request owns its tokens, its text and
// its usage; the engine owns KV slots.
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
#include "serving/sampling/logits_processor.h"
#include "serving/sampling/logprobs.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

using RequestId = int64_t;

enum class Phase { kWaiting, kPrefilling, kDecoding, kFinished };

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// Returns "stop", "length", "cancelled", "error", or "" for kNone.
const char* Name(FinishReason reason);

inline constexpr size_t kLongestSalt = 256;  // bytes of RequestOptions::cache_salt

struct RequestOptions {
  int max_tokens = 16;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool speculate = true;  // use draft trees if the engine drafts
  SamplingParameters sampling;
  // The client gave the seed: the output must be the same whatever else is served and however it is
  // drafted. If false, only its distribution is guaranteed.
  bool reproducible = true;
  std::shared_ptr<const LogitsProcessorOptions> logits_processor;  // null: none
  std::vector<int> stop_token_ids;   // end the output, as an end of sequence does
  bool include_stop = false;         // the stop string or token is part of the text
  bool show_special_tokens = false;  // special tokens have text
  std::vector<int> shown_tokens;     // special tokens that have text anyway
  int logprobs = -1;                 // most probable tokens reported per output token; -1: none
  int prompt_logprobs = -1;          // the same per prompt token, from the second on
  int priority = 0;                  // lower ones first
  // Shared by the requests of one API call, which are useless without each other. The engine sets
  // it when one of them starts; from then on none of them is refused or evicted from the queue.
  // Null: the request is alone.
  std::shared_ptr<std::atomic<bool>> group_started;
  double timeout_seconds = 0;  // from arrival; 0: none
  int adapter = -1;            // index of a LoRA adapter of the LLM; -1: none
  std::string cache_salt;      // prefix caching only among requests with the same salt
  // Returns only the prompt's embedding: the LLM's hidden state at the last token. The request ends
  // with kStop; generation options have no effect.
  bool embed = false;

  // True if a request of the group has started.
  bool admission_guaranteed() const { return group_started != nullptr && *group_started; }
};

// Returns InvalidArgument naming the field and the accepted values.
absl::Status ValidateOptions(const RequestOptions& options, int vocabulary);

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;       // of the prompt, found in the prefix cache
  int completion_tokens = 0;   // including an end-of-sequence token
  int drafted_tokens = 0;      // tree nodes that the LLM verified
  int accepted_tokens = 0;     // of these, accepted
  int verification_steps = 0;  // LLM steps that yielded tokens, except the prompt's
  double seconds_to_first_token = 0;
  double seconds = 0;
  double seconds_queued = 0;
};

// What ended an output with kStop: a token, a stop string, or neither (the end of its grammar).
struct StopCause {
  int token = -1;
  std::string text;
};

class Request {
 public:
  // REQUIRES: `options` passed ValidateOptions; `prompt` is not empty. `tokenizer` must outlive the
  // request.
  Request(RequestId id, std::vector<int> prompt, RequestOptions options,
          const Tokenizer& tokenizer);

  RequestId id() const { return id_; }
  const RequestOptions& options() const { return options_; }
  Phase phase() const { return phase_; }
  FinishReason finish_reason() const { return finish_reason_; }
  // Prompt and output. While decoding, the last token is not in a KV cache yet.
  absl::Span<const int> tokens() const { return tokens_; }
  int length() const { return static_cast<int>(tokens_.size()); }
  int emitted() const { return length() - usage_.prompt_tokens; }
  const Usage& usage() const { return usage_; }
  Usage& usage() { return usage_; }

  // Returns how many tokens can still follow in a context of `max_length` tokens.
  int Remaining(int max_length) const;

  void Admit() { phase_ = Phase::kPrefilling; }
  void Preempt() { phase_ = Phase::kWaiting; }

  // Appends a token to the output. Finishes the request if the token is an end of sequence (unless
  // ignored) or a stop token, completes a stop string or the constraint, or is the last that
  // max_tokens or the context allows; finishes with kError if the constraint forbids it. `logprobs`
  // (optional) are reported with it. REQUIRES: not finished.
  void Emit(int token, int max_length, const TokenLogprobs* logprobs = nullptr);

  // Edits the logits of the next tokens.
  const LogitsProcessor& logits_processor() const { return logits_processor_; }

  // True if AddPromptLogprobs still needs the logits, or log-probabilities, of the token after this
  // prompt position. It takes them in order, without gaps.
  bool WantsPromptLogits(int position) const {
    return options_.prompt_logprobs >= 0 && position >= prompt_logprobs_known_ &&
           position + 1 < usage_.prompt_tokens;
  }
  void AddPromptLogprobs(const float* logits, int vocabulary);
  void AddPromptLogprobs(TokenLogprobs logprobs);

  // Ends the request. Returns false, without effect, if it has already ended. With kLength, the
  // reason becomes kStop if text held back until now completes a stop string.
  bool Finish(FinishReason reason);

  // Return what was added since the last call: tokens, and text that is final (see StopStrings).
  std::vector<int> TakeTokens();
  std::string TakeText();
  std::vector<TokenLogprobs> TakeLogprobs() { return std::exchange(logprobs_, {}); }
  std::vector<TokenLogprobs> TakePromptLogprobs() { return std::exchange(prompt_logprobs_, {}); }

  const StopCause& stop_cause() const { return stop_cause_; }
  // The error with which Emit finished the request.
  const absl::Status& error() const { return error_; }

 private:
  // The tokens that end the output.
  static std::vector<int> Enders(const RequestOptions& options, const Tokenizer& tokenizer);

  // Appends text, as far as stop strings allow.
  void AddText(const std::string& piece);

  RequestId id_;
  RequestOptions options_;
  const Tokenizer& tokenizer_;
  std::vector<int> tokens_;
  int taken_ = 0;  // tokens that TakeTokens returned
  Phase phase_ = Phase::kWaiting;
  FinishReason finish_reason_ = FinishReason::kNone;
  Usage usage_;
  std::unique_ptr<StreamDecoder> decoder_;
  StopStrings stops_;
  std::string text_;
  LogitsProcessor logits_processor_;
  std::vector<TokenLogprobs> logprobs_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  int prompt_logprobs_known_ = 0;  // positions already reported; kept over preemption
  StopCause stop_cause_;
  absl::Status error_;
};

}  // namespace espalier
