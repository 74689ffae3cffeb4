// The effect of a logits processor on logits, as plain data: computed where the request is known,
// applied where the logits are, possibly on another machine.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

// One bit per token, 64 in a word. Tokens beyond the end are not in the set.
using TokenBitmask = std::vector<uint64_t>;
using TokenBitmaskRef = std::shared_ptr<const TokenBitmask>;

void Insert(int token, TokenBitmask* set);
bool Contains(const TokenBitmask& set, int token);

struct TokenPenalty {
  int32_t token = 0;
  double less = 0;  // subtracted after the repetition penalty

  bool operator==(const TokenPenalty& other) const {
    return token == other.token && less == other.less;
  }
};

// For all rows of a sequence in one step.
struct SequenceLogitEdits {
  TokenBitmaskRef permitted;                      // null: all
  std::vector<std::pair<int32_t, float>> biases;  // -infinity: masked
  // Positive logits of tokens with a penalty are divided by it, negative ones multiplied.
  double repetition_penalty = 1;
  std::vector<TokenPenalty> penalties;  // each token once
};

// For one row, in addition to its sequence's.
struct RowLogitEdits {
  TokenBitmaskRef permitted;            // null: all
  std::vector<int32_t> forbidden;       // removed from `permitted`
  std::vector<TokenPenalty> penalties;  // each token once; replaces the sequence's
};

// Applies masks, then biases, then penalties. Ignores tokens beyond the logits. Returns false if
// all tokens are masked.
bool ApplyLogitEdits(const SequenceLogitEdits& answer, const RowLogitEdits& row,
                     absl::Span<float> logits);

}  // namespace espalier
