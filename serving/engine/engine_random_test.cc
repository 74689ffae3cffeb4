// Random workloads: no slot is leaked, every request ends, and its output does not depend on the
// other requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "serving/engine/engine_test_util.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 12;

FakeModel Llm() { return HashModel(1, kVocabulary, 5); }

std::unique_ptr<EngineHarness> MakeHarness(
    int kv_slots, int max_rows, int ssms, int concurrent_steps = 1,
    SampledDrafting sampled = SampledDrafting::kWithoutReplacement) {
  auto harness = std::make_unique<EngineHarness>(kVocabulary, std::vector<int>{0});
  harness->limits().kv_slots = kv_slots;
  harness->limits().max_positions = 80;
  harness->SetLlm(Llm());
  if (concurrent_steps > 1) harness->SetConcurrentSteps(concurrent_steps);
  for (int i = 0; i < ssms; ++i) {
    harness->AddSsm(AgreeingModel(Llm(), HashModel(2 + i, kVocabulary, 5), 0.7, 9));
  }
  EngineOptions options{.max_requests = 8, .max_tokens_per_batch = max_rows, .max_queue = 1000};
  options.speculation.sampled = sampled;
  EXPECT_TRUE(harness->Start(options, "1,2,1,1").ok());
  return harness;
}

struct Submission {
  std::vector<int> prompt;
  RequestOptions options;
};

std::vector<Submission> RandomSubmissions(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Submission> out;
  for (const std::vector<int>& prompt : RandomPrompts(count, 40, kVocabulary, seed)) {
    RequestOptions options;
    options.max_tokens = 1 + static_cast<int>(random() % 50);
    options.ignore_eos = random() % 2;
    options.speculate = random() % 4 != 0;
    if (random() % 2) {
      options.sampling = {.temperature = 0.5 + 0.5 * static_cast<double>(random() % 3),
                          .top_p = random() % 2 ? 0.9 : 1.0,
                          .top_k = random() % 3 ? 0 : 6,
                          .seed = random()};
    }
    if (random() % 4 == 0) options.stop = {"ab", "ccc", "lk"};
    out.push_back({prompt, options});
  }
  return out;
}

class RandomWorkload : public ::testing::TestWithParam<SampledDrafting> {};

TEST_P(RandomWorkload, OutputsDoNotDependOnBatchOrderOrPreemption) {
  const std::vector<Submission> submissions = RandomSubmissions(60, 21);
  std::vector<Answer> alone;
  for (const Submission& submission : submissions) {
    auto harness = MakeHarness(4096, 200, 2, 1, GetParam());
    const RequestId id = *harness->engine().Submit(submission.prompt, submission.options);
    harness->RunToEnd();
    alone.push_back(harness->answer(id));
  }
  int64_t preemptions = 0, together = 0;
  struct {
    int kv_slots, max_rows, concurrent_steps;
  } const cases[] = {{4096, 200, 1}, {120, 60, 1}, {200, 15, 1}, {150, 25, 1},
                     {4096, 200, 2}, {120, 60, 2}, {200, 15, 3}, {150, 25, 4}};
  for (const auto& [kv_slots, max_rows, concurrent_steps] : cases) {
    auto harness = MakeHarness(kv_slots, max_rows, 2, concurrent_steps, GetParam());
    ASSERT_EQ(harness->engine().context(), 80);
    std::vector<RequestId> ids;
    for (const Submission& submission : submissions) {
      ids.push_back(*harness->engine().Submit(submission.prompt, submission.options));
      if (ids.size() % 3 == 0) {
        ASSERT_TRUE(harness->Step().ok());
      }
    }
    harness->RunToEnd();
    preemptions += harness->engine().statistics().preemptions;
    if (concurrent_steps > 1) together += harness->pipelined().together();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(harness->answer(ids[i]).tokens, alone[i].tokens)
          << i << " " << kv_slots << " " << concurrent_steps;
      EXPECT_EQ(harness->answer(ids[i]).text, alone[i].text);
      EXPECT_EQ(harness->answer(ids[i]).reason, alone[i].reason);
    }
  }
  EXPECT_GT(preemptions, 10) << "the test is meant to preempt";
  EXPECT_GT(together, 100) << "steps are meant to run at once";
}

INSTANTIATE_TEST_SUITE_P(Sampled, RandomWorkload,
                         ::testing::Values(SampledDrafting::kWithoutReplacement,
                                           SampledDrafting::kCoupledIfSeeded,
                                           SampledDrafting::kCoupled));

// With n-gram drafts: seeded requests use coupled sampling, others draw, and the drafts depend on
// all of them.
TEST(EngineRandom, SeededOutputsDoNotDependOnOtherRequests) {
  const std::vector<Submission> submissions = RandomSubmissions(60, 5);
  enum Drafts { kNone, kFixed, kTuned };
  const auto answers = [&](bool company, Drafts drafts) {
    EngineHarness harness(kVocabulary, {0});
    harness.limits().max_positions = 80;
    harness.SetLlm(Llm());
    EngineOptions options{.max_requests = 8, .max_tokens_per_batch = 60, .max_queue = 1000};
    double clock = 0;
    options.seconds = [&] { return clock += 1e-4; };
    options.speculation.tune = drafts == kTuned;
    options.speculation.sampled = SampledDrafting::kCoupledIfSeeded;
    options.speculation.ngram.depth = drafts == kNone ? 0 : 4;
    if (drafts != kNone) harness.AddSsm(AgreeingModel(Llm(), HashModel(2, kVocabulary, 5), 0.7, 9));
    EXPECT_TRUE(harness.Start(options, drafts == kFixed ? "1,2,1" : "").ok());
    std::vector<RequestId> ids;
    for (size_t i = 0; i < submissions.size(); ++i) {
      RequestOptions own = submissions[i].options;
      own.reproducible = i % 2 == 0;
      if (!own.reproducible && !company) continue;
      const RequestId id = *harness.engine().Submit(submissions[i].prompt, own);
      if (own.reproducible) ids.push_back(id);
      if (!company) harness.RunToEnd();
    }
    harness.RunToEnd();
    if (drafts != kNone) {
      EXPECT_GT(harness.engine().statistics().accepted_tokens, 10);
    }
    std::vector<std::vector<int>> out;
    for (const RequestId id : ids) out.push_back(harness.answer(id).tokens);
    return out;
  };
  const auto alone = answers(false, kNone);
  for (const Drafts drafts : {kNone, kFixed, kTuned}) EXPECT_EQ(answers(true, drafts), alone);
}

TEST(EngineRandom, GreedyAnswersEqualIncrementalOnesUnderCancelAndPreemption) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::mt19937_64 random(seed);
    const int tight = static_cast<int>(seed % 4);
    auto harness = MakeHarness(110 + tight * 20, 40, 1, /*concurrent_steps=*/seed < 4 ? 1 : 3);
    std::map<RequestId, Submission> open;
    std::map<RequestId, bool> cancelled;
    for (const Submission& submission : RandomSubmissions(150, seed + 40)) {
      open[*harness->engine().Submit(submission.prompt, submission.options)] = submission;
      for (int steps = random() % 6; steps > 0; --steps) {
        ASSERT_TRUE(harness->Step().ok());
        if (random() % 5 == 0) {
          const RequestId id = 1 + random() % open.size();
          if (harness->engine().Cancel(id)) cancelled[id] = true;
          ASSERT_TRUE(harness->engine().CheckInvariants().ok());
        }
      }
    }
    harness->RunToEnd();
    EXPECT_EQ(harness->finished(), 150);
    EXPECT_GT(cancelled.size(), 5u);
    for (const auto& [id, submission] : open) {
      const Answer& answer = harness->answer(id);
      EXPECT_EQ(answer.reason == FinishReason::kCancelled, cancelled.count(id) > 0);
      if (!submission.options.sampling.greedy()) continue;
      EXPECT_EQ(answer.tokens, GreedyContinuation(Llm(), submission.prompt,
                                                  static_cast<int>(answer.tokens.size())));
    }
  }
}

void OldRequestsEnd(int concurrent_steps) {
  auto harness = MakeHarness(120, 20, 1, concurrent_steps);
  const RequestId first = *harness->engine().Submit(
      std::vector<int>(30, 1),
      {.max_tokens = 40, .ignore_eos = true, .sampling = {.temperature = 1, .seed = 3}});
  int steps = 0;
  while (harness->answer(first).reason == FinishReason::kNone) {
    if (harness->engine().statistics().waiting < 20) {
      ASSERT_TRUE(harness->engine().Submit(std::vector<int>(20, 2), {.ignore_eos = true}).ok());
    }
    ASSERT_TRUE(harness->Step().ok());
    ASSERT_LT(++steps, 500 * concurrent_steps);
  }
  EXPECT_EQ(harness->answer(first).tokens.size(), 40u);
}

TEST(EngineRandom, NoRequestStarvesWhileNewOnesArrive) {
  OldRequestsEnd(1);
  OldRequestsEnd(3);
}

}  // namespace
}  // namespace espalier
