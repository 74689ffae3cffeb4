#include "planner/memory/weight_streaming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace espalier {
namespace {

// Checks the plan: nothing needed is overwritten, every parameter is resident when used, and the
// next group's copy may begin before the preceding step ends.
void ExpectSound(const std::vector<StreamableWeight>& parameters, const WeightStreamingPlan& plan,
                 int64_t budget) {
  EXPECT_LE(plan.resident_bytes, budget);
  int64_t resident = plan.buffer_bytes, streamed = 0;
  std::vector<size_t> order;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const WeightLocation& place = plan.places[i];
    if (!place.streams) {
      resident += (parameters[i].bytes + 63) / 64 * 64;
      continue;
    }
    streamed += (parameters[i].bytes + 63) / 64 * 64;
    EXPECT_EQ(place.offset % 64, 0);
    EXPECT_LE(place.offset + parameters[i].bytes, plan.buffer_bytes);
    EXPECT_LE(place.copy_before, parameters[i].first_use);
    order.push_back(i);
  }
  EXPECT_EQ(resident, plan.resident_bytes);
  EXPECT_EQ(streamed, plan.streamed_bytes);
  const auto overlap = [&](size_t a, size_t b) {
    return plan.places[a].offset < plan.places[b].offset + parameters[b].bytes &&
           plan.places[b].offset < plan.places[a].offset + parameters[a].bytes;
  };
  for (size_t a : order) {
    for (size_t b : order) {
      // b is copied while a is resident.
      if (a == b || !overlap(a, b) || parameters[a].first_use > parameters[b].first_use) continue;
      EXPECT_GT(plan.places[b].copy_before, parameters[a].last_use);
    }
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return parameters[a].first_use < parameters[b].first_use; });
  for (size_t k = 0; k + 1 < order.size(); ++k) {
    const StreamableWeight& now = parameters[order[k]];
    const WeightLocation& next = plan.places[order[k + 1]];
    EXPECT_LE(next.copy_before, now.first_use) << "nothing is copied while step " << now.first_use;
  }
}

std::vector<StreamableWeight> Layers(int layers) {
  std::vector<StreamableWeight> all = {{50000, 0, 0, true}};
  int step = 1;
  for (int l = 0; l < layers; ++l) {
    for (const int64_t bytes : {128, 4096, 1024, 1024, 4096, 128, 11000, 11000, 11000}) {
      all.push_back({bytes, step, step, false});
      ++step;
    }
  }
  return all;
}

int64_t Sum(const std::vector<StreamableWeight>& parameters) {
  int64_t sum = 0;
  for (const StreamableWeight& p : parameters) sum += (p.bytes + 63) / 64 * 64;
  return sum;
}

TEST(PlanWeightStreaming, KeepsAllResidentIfTheyFit) {
  const std::vector<StreamableWeight> layers = Layers(3);
  const auto plan = PlanWeightStreaming(layers, Sum(layers));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->streamed_bytes, 0);
  EXPECT_EQ(plan->buffer_bytes, 0);
  EXPECT_EQ(plan->resident_bytes, Sum(layers));
}

TEST(PlanWeightStreaming, EveryBudgetIsMetAndNearlyUsed) {
  const std::vector<StreamableWeight> layers = Layers(8);
  const int64_t all = Sum(layers);
  int64_t least = 0, planned = 0;
  for (int64_t budget = 1000; budget < all; budget += 1777) {
    const auto plan = PlanWeightStreaming(layers, budget);
    if (!plan.ok()) {
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(planned, 0) << "a smaller budget than " << budget << " did";
      least = budget;
      continue;
    }
    ++planned;
    ExpectSound(layers, *plan, budget);
    EXPECT_FALSE(plan->places[0].streams);
    // No further group could stay, given the double buffer.
    EXPECT_GT(plan->resident_bytes, budget - 2 * 11072);
  }
  EXPECT_GT(planned, 20);
  EXPECT_LT(least, 50000 + 3 * 11072);
  // The budget in the error suffices; one byte less does not.
  const auto refused = PlanWeightStreaming(layers, least);
  const std::string text(refused.status().message());
  const int64_t said = std::stoll(text.substr(text.rfind(' ') + 1));
  EXPECT_TRUE(PlanWeightStreaming(layers, said).ok());
  EXPECT_FALSE(PlanWeightStreaming(layers, said - 1).ok());
}

TEST(PlanWeightStreaming, ResidentWeightsAreSpreadOverTheSteps) {
  const std::vector<StreamableWeight> layers = Layers(16);
  const auto plan = PlanWeightStreaming(layers, Sum(layers) / 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<int64_t> by_quarter(4, 0);
  for (size_t i = 1; i < layers.size(); ++i) {
    if (plan->places[i].streams) by_quarter[(i - 1) * 4 / (layers.size() - 1)] += layers[i].bytes;
  }
  for (int64_t bytes : by_quarter) EXPECT_NEAR(bytes, plan->streamed_bytes / 4, 2 * 11072);
}

// Parameters of one operator stream together; those of several stay.
TEST(PlanWeightStreaming, RandomProgramsGetAValidPlanOrNone) {
  std::mt19937 random(3);
  int planned = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<StreamableWeight> parameters;
    const int count = static_cast<int>(random() % 40) + 1;
    for (int i = 0; i < count; ++i) {
      StreamableWeight p;
      p.bytes = static_cast<int64_t>(random() % 5000) + 1;
      p.first_use = p.last_use = static_cast<int>(random() % 20);
      if (random() % 10 == 0) p.last_use += static_cast<int>(random() % 5);
      p.must_stay = random() % 10 == 0;
      parameters.push_back(p);
    }
    const int64_t budget = static_cast<int64_t>(random() % (Sum(parameters) + 1));
    const auto plan = PlanWeightStreaming(parameters, budget);
    if (!plan.ok()) continue;
    ++planned;
    ExpectSound(parameters, *plan, budget);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].must_stay || parameters[i].first_use != parameters[i].last_use) {
        EXPECT_FALSE(plan->places[i].streams);
      }
    }
  }
  EXPECT_GT(planned, 100);
}

}  // namespace
}  // namespace espalier
