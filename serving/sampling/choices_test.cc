#include "serving/sampling/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(TopChoices, AreTheMostProbableTokensWithTheirProbabilities) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int size = 1 + static_cast<int>(random() % 300);
    const int count = static_cast<int>(random() % 12);
    // Few different values: many are equal. Some are far below, some excluded.
    std::vector<float> logits(size);
    for (float& logit : logits) {
      logit = static_cast<float>(random() % 9) * (trial % 3 == 0 ? 10.0f : 0.5f) - 3;
      if (random() % 5 == 0) logit = -INFINITY;
    }
    logits[random() % size] = 1;
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    std::vector<int> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[a] > logits[b]; });
    while (logits[order.back()] == -INFINITY) order.pop_back();

    const auto choices = TopChoices(logits, count);
    ASSERT_TRUE(choices.ok()) << choices.status();
    ASSERT_EQ(choices->size(), std::min<size_t>(count, order.size()));
    for (size_t i = 0; i < choices->size(); ++i) {
      EXPECT_EQ((*choices)[i].token, order[i]);
      EXPECT_NEAR((*choices)[i].probability, std::exp(logits[order[i]]) / sum, 1e-6);
    }
  }
}

TEST(TopChoices, RefuseWhatIsNoNumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, 1, 2}, std::vector<float>{1, 2, kNan}, std::vector<float>{kNan},
        std::vector<float>{0, INFINITY}, std::vector<float>{-INFINITY, -INFINITY}}) {
    const auto choices = TopChoices(logits, 2);
    ASSERT_FALSE(choices.ok());
    EXPECT_THAT(choices.status().message(), HasSubstr("are the weights intact?"));
  }
}

}  // namespace
}  // namespace espalier
