// Logits processors: masks, biases and penalties that a request applies to the logits before
// sampling. Each is a function of the tokens before the sampled one. In a token tree these are the
// output and the tokens on the path to the node, so verification uses exactly the distribution of
// incremental decoding.
//
// In this order, which is vLLM's: constraint, allowed tokens, bad words, tokens that end the output
// before min_tokens, biases, repetition penalty, frequency and presence penalty.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/sampling/logit_edits.h"
#include "serving/sampling/token_constraint.h"

namespace espalier {

struct LogitsProcessorOptions {
  // For tokens in prompt or output: positive logits are divided by it, negative ones multiplied
  // (CTRL, arXiv:1909.05858).
  double repetition_penalty = 1;
  double presence_penalty = 0;   // subtracted once for tokens in the output
  double frequency_penalty = 0;  // subtracted for each occurrence in the output
  int min_tokens = 0;            // of the output, before it may end
  std::vector<std::pair<int, float>> logit_bias;
  std::vector<int> allowed;                 // empty: all
  std::vector<std::vector<int>> bad_words;  // the last token of a word never follows the others
  std::shared_ptr<TokenConstraint> constraint;

  bool penalizes() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

// Returns InvalidArgument naming the field, its value and the accepted values.
absl::Status ValidateLogitsProcessor(const LogitsProcessorOptions& options, int vocabulary);

// The logits processors of one request, with the tokens of its output.
class LogitsProcessor {
 public:
  // `options` may be null. `enders`: the tokens that end the output (end of sequence, stop tokens).
  LogitsProcessor(std::shared_ptr<const LogitsProcessorOptions> options,
                  absl::Span<const int> prompt, std::vector<int> enders);

  // False if Apply changes nothing.
  bool active() const { return active_; }

  // Appends `token` to the output. Returns errors of the constraint.
  absl::Status Append(int token);

  // True if the constraint is satisfied and no token can follow.
  bool complete() const;

  // See TokenConstraint::Costly.
  bool costly() const;

  // Return what Apply does, as data: for all rows of the sequence, and in addition for the row
  // after `path`. EditsAfter returns InvalidArgument if the constraint does not allow the path, or
  // no token after it.
  SequenceLogitEdits Edits() const;
  absl::StatusOr<RowLogitEdits> EditsAfter(absl::Span<const int> path) const;

  // Edits the logits of the token after the output and `path`. Returns InvalidArgument if all
  // tokens are masked.
  absl::Status Apply(absl::Span<const int> path, float* logits, int vocabulary) const;

  // False if Apply would mask `token`, or fail. Does not look at the whole vocabulary. Does not
  // consult the constraint for a token that ends the output.
  bool Allows(absl::Span<const int> path, int token) const;

 private:
  struct Seen {
    bool in_prompt = false;
    int in_answer = 0;
  };

  bool Ends(int token) const;
  // Returns null beyond the constraint's end.
  absl::StatusOr<TokenConstraint::StateRef> StateAfter(absl::Span<const int> path) const;
  // True if the tokens of the bad word before its last one end the output and `path`.
  bool Began(const std::vector<int>& word, absl::Span<const int> path) const;
  bool TooShort(absl::Span<const int> path) const;
  // Adds the request's stop tokens where the constraint allows an end of sequence; constraints do
  // not know them.
  TokenBitmaskRef WithEnders(TokenBitmaskRef permitted) const;
  double PenaltyOf(int in_answer) const;

  std::shared_ptr<const LogitsProcessorOptions> options_;
  std::vector<int> enders_;
  TokenBitmaskRef allowed_;  // null: all
  // the last argument and result of WithEnders
  mutable std::pair<TokenBitmaskRef, TokenBitmaskRef> with_enders_;
  std::vector<int> never_;       // bad words of one token, sorted
  std::vector<size_t> phrases_;  // the other bad words
  bool active_;
  std::vector<int> answer_;
  absl::flat_hash_map<int, Seen> seen_;  // only with penalties
  TokenConstraint::StateRef state_;      // null: no constraint, or the output has ended
};

}  // namespace espalier
