// The checks must pass for every drafting method, and fail for runners that violate their contract
// in realistic ways.
#include "serving/lossless/lossless.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "serving/runner/row_outputs.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"
#include "serving/testing/pipelined_model_runner.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 10;

FakeModel Llm() { return HashModel(1, kVocabulary, 4); }
FakeModel Ssm(int i) { return AgreeingModel(Llm(), HashModel(2 + i, kVocabulary, 4), 0.7, 9); }

LosslessOptions Options(const char* expansion) {
  LosslessOptions options;
  options.engine.expansion = *Expansion::Parse(expansion);
  options.prompts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4}};
  options.draws = 6000;
  return options;
}

std::string Describe(const LosslessReport& report) {
  std::string out;
  for (const LosslessCheck& check : report.checks) {
    out += check.name + (check.passed ? ": passed, " : ": FAILED, ") + check.detail + "\n";
  }
  return out;
}

const LosslessCheck& Check(const LosslessReport& report, const std::string& name) {
  for (const LosslessCheck& check : report.checks) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return report.checks[0];
}

// Accepted nodes whose K and V the check "KV" has seen.
int AcceptedIn(const LosslessCheck& kv) {
  const size_t end = kv.detail.find(" of them of accepted nodes");
  if (end == std::string::npos) return 0;
  return std::atoi(kv.detail.c_str() + kv.detail.rfind(' ', end - 1));
}

TEST(Lossless, PassesForEveryDraftingMethod) {
  LetterTokenizer tokenizer(kVocabulary);
  FakeModelRunner llm(FakeModelRunner::LargeLimits(kVocabulary), Llm());
  FakeModelRunner a(FakeModelRunner::LargeLimits(kVocabulary), Ssm(0));
  FakeModelRunner b(FakeModelRunner::LargeLimits(kVocabulary), Ssm(1));
  LosslessOptions tree = Options("1,2,1"), best_first = Options(""), wide = Options("3,1"),
                  ngram = Options("1,1"), tuned = Options("2,1");
  best_first.engine.speculation = {.max_nodes = 8, .sampled = SampledDrafting::kCoupled};
  ngram.engine.speculation.ngram.depth = 4;
  tuned.engine.speculation.tune = true;
  tuned.engine.seconds = [&] {
    return static_cast<double>(llm.steps()) + 0.02 * static_cast<double>(a.steps() + b.steps());
  };
  for (const LosslessOptions& options : {tree, best_first, wide, ngram, tuned}) {
    const auto report = VerifyLossless(llm, {&a, &b}, tokenizer, options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->passed()) << Describe(*report);
    EXPECT_EQ(report->checks.size(), 6u);
    EXPECT_GT(AcceptedIn(Check(*report, "KV")), 0);
    EXPECT_GT(report->smallest_margin, 0);
    EXPECT_LT(report->smallest_margin, 0.5);
    EXPECT_GT(report->accepted_per_step, 0.1);
  }
}

TEST(Lossless, PassesWithConcurrentSteps) {
  LetterTokenizer tokenizer(kVocabulary);
  FakeModelRunner inner(FakeModelRunner::LargeLimits(kVocabulary), Llm());
  FakeModelRunner ssm(FakeModelRunner::LargeLimits(kVocabulary), Ssm(0));
  PipelinedModelRunner llm(inner, 3);
  const auto report = VerifyLossless(llm, {&ssm}, tokenizer, Options("1,2,1"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->passed()) << Describe(*report);
  EXPECT_EQ(report->checks.size(), 6u);
  EXPECT_GT(report->smallest_margin, 0);
  EXPECT_EQ(llm.most(), 3);
  EXPECT_GT(llm.together(), 100);
  EXPECT_EQ(llm.open(), 0);
  EXPECT_GT(inner.choices(), 1000);  // tokens sampled by the runner
}

// Samples in every step, and then spoils the sampled tokens.
class BrokenChooser : public FakeModelRunner {
 public:
  using Spoil = std::function<void(const RunnerBatch&, RunnerOutput*)>;
  BrokenChooser(FakeModel model, Spoil spoil)
      : FakeModelRunner(LargeLimits(kVocabulary), std::move(model)), spoil_(std::move(spoil)) {}
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    RunnerBatch shown = batch;
    shown.row_outputs.clear();
    absl::Status status = FakeModelRunner::Step(shown, logits);
    if (!status.ok() || batch.row_outputs.empty()) return status;
    RunnerBatch granted = batch;
    if (drop_edits) granted.row_edits.clear();
    SampleRows(granted, logits);
    spoil_(batch, logits);
    return status;
  }

  bool drop_edits = false;

 private:
  Spoil spoil_;
};

TEST(Lossless, DetectsWronglySampledTokens) {
  LetterTokenizer tokenizer(kVocabulary);
  const auto nothing = [](const RunnerBatch&, RunnerOutput*) {};
  FakeModelRunner ssm(FakeModelRunner::LargeLimits(kVocabulary), Llm());
  BrokenChooser good(Llm(), nothing);
  LosslessReport report = *VerifyLossless(good, {&ssm}, tokenizer, Options("1,1"));
  EXPECT_TRUE(report.passed()) << Describe(report);
  // The logits of every row are right, but now and then the sampled token of a tree's second node
  // is wrong.
  BrokenChooser off_by_one(Llm(), [](const RunnerBatch& batch, RunnerOutput* logits) {
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const int row = batch.logit_rows[i];
      if (batch.ancestor_start[row + 1] - batch.ancestor_start[row] < 2) continue;
      if (logits->choices[i].empty()) continue;
      int& token = logits->choices[i][0].token;
      if (token == 3) token = 4;
    }
  });
  report = *VerifyLossless(off_by_one, {&ssm}, tokenizer, Options("1,1"));
  EXPECT_FALSE(Check(report, "greedy").passed) << Describe(report);
  EXPECT_THAT(Check(report, "greedy").detail, HasSubstr("chosen as in service"));
  // Applies the penalties of the sequence but not those of a node's path.
  BrokenChooser forgetful(Llm(), nothing);
  forgetful.drop_edits = true;
  report = *VerifyLossless(forgetful, {&ssm}, tokenizer, Options("1,1,1"));
  EXPECT_TRUE(Check(report, "greedy").passed) << Describe(report);
  EXPECT_TRUE(Check(report, "seeds").passed) << Describe(report);
  EXPECT_FALSE(Check(report, "penalties").passed) << Describe(report);
}

TEST(Lossless, ALostKvCacheEndsTheCheckWithAnError) {
  LetterTokenizer tokenizer(kVocabulary);
  FakeModelRunner llm(FakeModelRunner::LargeLimits(kVocabulary), Llm());
  FakeModelRunner ssm(FakeModelRunner::LargeLimits(kVocabulary), Ssm(0));
  LosslessOptions options = Options("1,1");
  int calls = 0;
  options.progress = [&](const LosslessProgress&) {
    if (++calls == 5) llm.LoseCache();
    return absl::OkStatus();
  };
  const absl::Status status = VerifyLossless(llm, {&ssm}, tokenizer, options).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("loaded again"));
}

// Forwards steps and applies `spoil` to their outputs.
class BrokenRunner : public FakeModelRunner {
 public:
  using Spoil = std::function<void(const RunnerBatch&, RunnerOutput*)>;
  BrokenRunner(FakeModel model, Spoil spoil)
      : FakeModelRunner(LargeLimits(kVocabulary), std::move(model)), spoil_(std::move(spoil)) {}
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    RunnerBatch shown = batch;
    shown.row_outputs.clear();
    absl::Status status = FakeModelRunner::Step(shown, logits);
    if (status.ok()) spoil_(batch, logits);
    return status;
  }

 private:
  Spoil spoil_;
};

TEST(Lossless, DetectsLogitsThatDependOnTheTree) {
  LetterTokenizer tokenizer(kVocabulary);
  // Rows of trees differ slightly, as with another order of summation.
  BrokenRunner llm(Llm(), [](const RunnerBatch& batch, RunnerOutput* logits) {
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const int row = batch.logit_rows[i];
      if (batch.ancestor_start[row + 1] - batch.ancestor_start[row] < 2) continue;
      for (int t = 0; t < kVocabulary; ++t) {
        logits->values[i * kVocabulary + t] += t % 2 ? 0.4f : -0.4f;
      }
    }
  });
  FakeModelRunner ssm(FakeModelRunner::LargeLimits(kVocabulary), Llm());
  LosslessOptions options = Options("1,1,1");
  options.draws = 20000;
  const LosslessReport report = *VerifyLossless(llm, {&ssm}, tokenizer, options);
  EXPECT_FALSE(report.passed());
  EXPECT_FALSE(Check(report, "greedy").passed) << Describe(report);
  EXPECT_THAT(Check(report, "greedy").detail, HasSubstr("best logits are"));
  EXPECT_FALSE(Check(report, "seeds").passed);
  EXPECT_TRUE(Check(report, "enumeration").passed);
}

TEST(Lossless, DetectsASlightlyWrongDistributionAndWrongKv) {
  LetterTokenizer tokenizer(kVocabulary);
  // Rows that share a batch with another sequence prefer token 3.
  BrokenRunner leaning(Llm(), [](const RunnerBatch& batch, RunnerOutput* logits) {
    if (batch.sequence_start.size() < 3) return;
    for (size_t i = 0; i < batch.logit_rows.size(); ++i)
      logits->values[i * kVocabulary + 3] += 0.2f;
  });
  FakeModelRunner ssm(FakeModelRunner::LargeLimits(kVocabulary), Ssm(0));
  LosslessOptions options = Options("1,1");
  options.draws = 20000;
  options.distribution_top_k = 5;
  EXPECT_FALSE(Check(*VerifyLossless(leaning, {&ssm}, tokenizer, options), "distribution").passed);
  // The first step over a long cached prefix is off by one bit.
  BrokenRunner stale(Llm(), [](const RunnerBatch& batch, RunnerOutput* logits) {
    if (batch.rows() > 1 || batch.row_prefix[0] < 30 || logits->values.empty()) return;
    logits->values.back() = std::nextafter(logits->values.back(), 1e9f);
  });
  const LosslessReport report = *VerifyLossless(stale, {&ssm}, tokenizer, Options("1,1"));
  EXPECT_FALSE(Check(report, "KV").passed) << Describe(report);
}

// Its cache holds something else in the slot of an accepted tree node, from the first read on.
class ForgettingRunner : public FakeModelRunner {
 public:
  using FakeModelRunner::FakeModelRunner;
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    RunnerBatch shown = batch;
    shown.row_outputs.clear();
    absl::Status status = FakeModelRunner::Step(shown, logits);
    if (!status.ok()) return status;
    for (int row = 0; row < batch.rows(); ++row) {
      const bool in_tree = batch.ancestor_start[row + 1] > batch.ancestor_start[row];
      if (in_tree) {
        of_trees_.insert(batch.slots[row]);
      } else {
        of_trees_.erase(batch.slots[row]);
      }
    }
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const int sequence = batch.row_sequence[batch.logit_rows[i]];
      for (int s = batch.sequence_start[sequence]; s < batch.sequence_start[sequence + 1]; ++s) {
        if (of_trees_.count(batch.sequence_slots[s]) == 0) continue;
        // One bit, which changes no token.
        float& logit = logits->values[(i + 1) * kVocabulary - 1];
        logit = std::nextafter(logit, 1e9f);
        break;
      }
    }
    return status;
  }

 private:
  std::set<int32_t> of_trees_;
};

TEST(Lossless, DetectsWrongKvOfAcceptedNodesForEveryDrafter) {
  LetterTokenizer tokenizer(kVocabulary);
  for (const FakeModel& drafts : {Ssm(0), DisagreeingModel(Llm())}) {
    ForgettingRunner llm(FakeModelRunner::LargeLimits(kVocabulary), Llm());
    FakeModelRunner ssm(FakeModelRunner::LargeLimits(kVocabulary), drafts);
    const LosslessReport report = *VerifyLossless(llm, {&ssm}, tokenizer, Options("1,1"));
    EXPECT_TRUE(Check(report, "greedy").passed) << Describe(report);
    EXPECT_FALSE(Check(report, "KV").passed) << Describe(report);
    EXPECT_THAT(Check(report, "KV").detail, HasSubstr("not those of a fresh computation"));
  }
}

// Tuning would not draft with an untrained SSM, but its trees are to be checked.
TEST(Lossless, ChecksTreesThatTuningWouldNotDraft) {
  LetterTokenizer tokenizer(kVocabulary);
  FakeModelRunner llm(FakeModelRunner::LargeLimits(kVocabulary), Llm());
  FakeModelRunner ssm(FakeModelRunner::LargeLimits(kVocabulary), DisagreeingModel(Llm()));
  LosslessOptions options = Options("");
  options.engine.speculation.tune = true;
  options.engine.seconds = [&] {
    return static_cast<double>(llm.steps()) + 2 * static_cast<double>(ssm.steps());
  };
  const LosslessReport report = *VerifyLossless(llm, {&ssm}, tokenizer, options);
  EXPECT_TRUE(report.passed()) << Describe(report);
  EXPECT_EQ(report.accepted_per_step, 0);
  // Plain decoding fills the cache, too; what is passed is of accepted nodes.
  EXPECT_THAT(Check(report, "KV").detail, HasSubstr("of trees that were told the answers"));
  EXPECT_GT(AcceptedIn(Check(report, "KV")), 20);
  // Without drafting, incremental decoding would be compared with itself.
  options.engine.seconds = nullptr;
  options.engine.speculation = {};
  const LosslessReport idle = *VerifyLossless(llm, {&ssm}, tokenizer, options);
  EXPECT_FALSE(idle.passed());
  EXPECT_THAT(Check(idle, "greedy").detail, HasSubstr("nothing was drafted"));
}

TEST(Lossless, RefusesWhatItCannotCheck) {
  LetterTokenizer tokenizer(kVocabulary);
  FakeModelRunner llm(FakeModelRunner::LargeLimits(kVocabulary), Llm());
  LosslessOptions options = Options("");
  options.prompts.clear();
  EXPECT_THAT(std::string(VerifyLossless(llm, {}, tokenizer, options).status().message()),
              HasSubstr("prompts is 0"));
  options = Options("");
  options.distribution_tokens = 9;
  EXPECT_THAT(std::string(VerifyLossless(llm, {}, tokenizer, options).status().message()),
              HasSubstr("distribution_tokens is 9"));
  options = Options("");
  options.prompts[1] = {99};
  EXPECT_THAT(std::string(VerifyLossless(llm, {}, tokenizer, options).status().message()),
              HasSubstr("prompt 1: prompt token 0 is 99"));
  options = Options("");
  options.answer = 1;  // which nothing has run
  options.prompts.resize(2);
  const LosslessReport report = *VerifyLossless(llm, {}, tokenizer, options);
  EXPECT_THAT(Check(report, "KV").detail, HasSubstr("nothing was checked"));
  EXPECT_FALSE(report.passed());
}

}  // namespace
}  // namespace espalier
