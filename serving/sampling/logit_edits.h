// What a request's rules do to logits, as plain values: worked out where the rules and the answer
// are known, applied where the logits are.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

// A bit for each token, 64 in a word; tokens beyond its end are not in it.
using TokenBitmask = std::vector<uint64_t>;
using TokenBitmaskRef = std::shared_ptr<const TokenBitmask>;

void Insert(int token, TokenBitmask* set);
bool Contains(const TokenBitmask& set, int token);

struct TokenPenalty {
  int32_t token = 0;
  double less = 0;  // subtracted, behind the repetition penalty

  bool operator==(const TokenPenalty& other) const {
    return token == other.token && less == other.less;
  }
};

// Of every row of an answer, as far as it has come.
struct SequenceLogitEdits {
  TokenBitmaskRef permitted;                          // null: all
  std::vector<std::pair<int32_t, float>> biases;  // -infinity: never
  // Positive logits of tokens that have a penalty are divided by it, negative ones multiplied.
  double repetition_penalty = 1;
  std::vector<TokenPenalty> penalties;  // each token once
};

// Of one row besides.
struct RowLogitEdits {
  TokenBitmaskRef permitted;                // null: all
  std::vector<int32_t> forbidden;       // of those
  std::vector<TokenPenalty> penalties;  // each token once; instead of the answer's for it
};

// Masks, then biases, then penalties. Tokens that the logits lack cannot come, and are passed over.
// False: it leaves no token.
bool ApplyLogitEdits(const SequenceLogitEdits& answer, const RowLogitEdits& row, absl::Span<float> logits);

}  // namespace espalier
