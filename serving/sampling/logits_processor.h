// What a request does to the model's logits before they become a distribution: masks, biases and
// penalties, each a function of the tokens before the one that is decided. In a token tree these
// are the answer's and those on the node's own path, so that verification works on exactly the
// distribution of incremental decoding.
//
// In this order, which is vLLM's: constraint, allowed tokens, bad words, the tokens that end an
// answer before min_tokens, biases, repetition penalty, frequency and presence penalty.
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
  double repetition_penalty = 1;  // of tokens in prompt or answer: positive logits are divided by
                                  // it, negative ones multiplied (CTRL, arXiv:1909.05858)
  double presence_penalty = 0;    // subtracted once for tokens in the answer
  double frequency_penalty = 0;   // subtracted for each time
  int min_tokens = 0;             // of the answer, before it may end
  std::vector<std::pair<int, float>> logit_bias;
  std::vector<int> allowed;                 // empty: all
  std::vector<std::vector<int>> bad_words;  // the last token of one never follows the others
  std::shared_ptr<TokenConstraint> constraint;

  bool penalizes() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

// InvalidArgument naming field, value and what is accepted.
absl::Status ValidateLogitsProcessor(const LogitsProcessorOptions& options, int vocabulary);

// The options of one request together with its tokens so far.
class LogitsProcessor {
 public:
  // `options` may be null. `enders` are the tokens that end the answer (end of sequence, stop
  // tokens).
  LogitsProcessor(std::shared_ptr<const LogitsProcessorOptions> options, absl::Span<const int> prompt,
              std::vector<int> enders);

  // False: Apply would change nothing.
  bool active() const { return active_; }

  // `token` is now part of the answer. Errors are those of the constraint.
  absl::Status Append(int token);

  // The constraint is satisfied and nothing can follow.
  bool complete() const;

  // See TokenConstraint::Costly.
  bool costly() const;

  // What is done to logits behind the answer, and what besides behind the answer and then `path`:
  // the same as Apply does, for whoever has the logits. InvalidArgument if the constraint has no
  // state there, or leaves no token.
  SequenceLogitEdits Edits() const;
  absl::StatusOr<RowLogitEdits> EditsAfter(absl::Span<const int> path) const;

  // Changes the logits of the token that follows the answer and then `path`. InvalidArgument if no
  // token is left.
  absl::Status Apply(absl::Span<const int> path, float* logits, int vocabulary) const;

  // False: Apply would exclude `token`, or fail. Says so without looking at the vocabulary. Of a
  // token that ends the answer the constraint is not asked.
  bool Allows(absl::Span<const int> path, int token) const;

 private:
  struct Seen {
    bool in_prompt = false;
    int in_answer = 0;
  };

  bool Ends(int token) const;
  // Null, without an error, beyond the constraint's end.
  absl::StatusOr<TokenConstraint::StateRef> StateAfter(absl::Span<const int> path) const;
  // Whether the bad word's tokens before its last one are those at the end of answer and path.
  bool Began(const std::vector<int>& word, absl::Span<const int> path) const;
  bool TooShort(absl::Span<const int> path) const;
  // A request's own stop tokens end it where an end of sequence does; constraints do not know them.
  TokenBitmaskRef WithEnders(TokenBitmaskRef permitted) const;
  double PenaltyOf(int in_answer) const;

  std::shared_ptr<const LogitsProcessorOptions> options_;
  std::vector<int> enders_;
  TokenBitmaskRef allowed_;                                      // null: all
  mutable std::pair<TokenBitmaskRef, TokenBitmaskRef> with_enders_;  // the last one asked for, and made
  std::vector<int> never_;                                   // bad words of one token, in order
  std::vector<size_t> phrases_;                              // the others of the options' bad words
  bool active_;
  std::vector<int> answer_;
  absl::flat_hash_map<int, Seen> seen_;  // only if there are penalties
  TokenConstraint::StateRef state_;      // null: no constraint, or the answer has ended
};

}  // namespace espalier
