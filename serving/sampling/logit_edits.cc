#include "serving/sampling/logit_edits.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr float kNever = -INFINITY;
constexpr size_t kBits = 64;

void KeepOnly(const TokenBitmask& set, absl::Span<float> logits) {
  for (size_t begin = 0; begin < logits.size(); begin += kBits) {
    const size_t word = begin / kBits;
    const uint64_t bits = word < set.size() ? set[word] : 0;
    if (bits == ~uint64_t{0}) continue;
    const absl::Span<float> part = logits.subspan(begin, kBits);
    if (bits == 0) {
      std::fill(part.begin(), part.end(), kNever);
      continue;
    }
    for (size_t i = 0; i < part.size(); ++i) {
      if ((bits >> i & 1) == 0) part[i] = kNever;
    }
  }
}

}  // namespace

void Insert(int token, TokenBitmask* set) {
  const size_t word = static_cast<size_t>(token) / kBits;
  if (set->size() <= word) set->resize(word + 1, 0);
  (*set)[word] |= uint64_t{1} << (static_cast<size_t>(token) % kBits);
}

bool Contains(const TokenBitmask& set, int token) {
  const size_t word = static_cast<size_t>(token) / kBits;
  return word < set.size() && (set[word] >> (static_cast<size_t>(token) % kBits) & 1) != 0;
}

bool ApplyLogitEdits(const SequenceLogitEdits& answer, const RowLogitEdits& row,
                     absl::Span<float> logits) {
  const auto has = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  if (row.permitted) KeepOnly(*row.permitted, logits);
  if (answer.permitted) KeepOnly(*answer.permitted, logits);
  for (const int32_t token : row.forbidden) {
    if (has(token)) logits[token] = kNever;
  }
  for (const auto& [token, bias] : answer.biases) {
    if (has(token)) logits[token] += bias;
  }
  const auto penalize = [&](const TokenPenalty& penalty) {
    if (!has(penalty.token)) return;
    float& logit = logits[penalty.token];
    const double factor = answer.repetition_penalty;
    const double value = logit > 0 ? logit / factor : logit * factor;
    logit = static_cast<float>(value - penalty.less);
  };
  for (const TokenPenalty& penalty : row.penalties) penalize(penalty);
  for (const TokenPenalty& penalty : answer.penalties) {
    const bool replaced =
        std::any_of(row.penalties.begin(), row.penalties.end(),
                    [&](const TokenPenalty& other) { return other.token == penalty.token; });
    if (!replaced) penalize(penalty);
  }
  return std::any_of(logits.begin(), logits.end(), [](float logit) { return logit != kNever; });
}

}  // namespace espalier
