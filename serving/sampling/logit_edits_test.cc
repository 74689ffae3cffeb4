#include "serving/sampling/logit_edits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

namespace espalier {
namespace {

constexpr float kNever = -INFINITY;

// Vocabulary sizes that are no multiple of 64, and bitmasks that end before, at and after them.
TEST(LogitEdits, MasksIntersectAndForbiddenTokensAreRemoved) {
  std::mt19937 random(1);
  for (const int vocabulary : {1, 63, 64, 65, 200}) {
    for (int trial = 0; trial < 50; ++trial) {
      std::set<int> in[2], forbidden;
      TokenBitmaskRef sets[2];
      for (int i = 0; i < 2; ++i) {
        TokenBitmask set;
        for (int n = static_cast<int>(random() % 400); n > 0; --n) {
          const int token = static_cast<int>(random() % 300);
          in[i].insert(token);
          Insert(token, &set);
        }
        sets[i] = std::make_shared<const TokenBitmask>(std::move(set));
      }
      RowLogitEdits row{.permitted = sets[0]};
      for (int n = 0; n < 10; ++n) {
        row.forbidden.push_back(static_cast<int>(random() % 400) - 50);
        forbidden.insert(row.forbidden.back());
      }
      SequenceLogitEdits answer;
      if (trial % 2 == 0) answer.permitted = sets[1];
      std::vector<float> logits(vocabulary, 1.5f);
      bool any = false;
      const bool left = ApplyLogitEdits(answer, row, absl::MakeSpan(logits));
      for (int token = 0; token < vocabulary; ++token) {
        const bool stays = in[0].count(token) > 0 && (trial % 2 == 1 || in[1].count(token) > 0) &&
                           forbidden.count(token) == 0;
        EXPECT_EQ(logits[token], stays ? 1.5f : kNever) << token;
        any = any || stays;
      }
      EXPECT_EQ(left, any);
    }
  }
}

TEST(LogitEdits, ARowPenaltyReplacesTheSequencePenalty) {
  const SequenceLogitEdits answer{.biases = {{0, 1.0f}, {9, 1.0f}},
                                  .repetition_penalty = 2,
                                  .penalties = {{0, 1}, {1, 1}, {9, 1}}};
  std::vector<float> logits = {3, 4, 5, -6};
  EXPECT_TRUE(ApplyLogitEdits(answer, {.penalties = {{1, 3}, {3, 0}}}, absl::MakeSpan(logits)));
  EXPECT_EQ(logits, (std::vector<float>{4 / 2 - 1, 4 / 2 - 3, 5, -12}));
}

}  // namespace
}  // namespace espalier
