// One generation request and its life:
//
//   waiting -> prefilling -> decoding -> finished
//      ^___________|____________|           (preempted: back to waiting, to be computed again)
//
// and from every state but finished to finished (cancelled, error). The request owns its tokens,
// its text and its usage; slots of KV caches belong to the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "serving/request/stop_strings.h"
#include "serving/sampling/distribution.h"
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
  int priority = 0;       // the lower number goes first
  SamplingParameters sampling;
};

// InvalidArgument naming the field and what it accepts.
absl::Status ValidateOptions(const RequestOptions& options);

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;       // of the prompt, whose K and V an earlier request had left
  int completion_tokens = 0;   // an end-of-sequence token counts
  int drafted_tokens = 0;      // tree nodes that the LLM verified
  int accepted_tokens = 0;     // of those, the ones in the answer
  int verification_steps = 0;  // steps of the LLM that yielded tokens, but for the prompt's own
  double seconds_to_first_token = 0;
  double seconds = 0;
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
  // ignored), completes a stop string, or is the last that max_tokens or the context allows.
  // REQUIRES: not finished.
  void Emit(int token, int max_length);

  // Ends the request, once: later calls change nothing. True if this one did.
  bool Finish(FinishReason reason);

  // What was added since the last call: tokens, and text that is certain (see StopStrings).
  std::vector<int> TakeTokens();
  std::string TakeText();

 private:
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
};

}  // namespace espalier
