// What a dashboard reads, after real requests on a real engine.
#include "server/inference/serving_metrics.h"

#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "server/inference/model_server.h"
#include "server/metrics/metrics.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 10;

// An SSM that is the LLM itself: every node of the path is accepted.
std::shared_ptr<LoadedModel> Model() {
  EngineParts parts;
  parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
  const RunnerLimits limits = FakeModelRunner::RoomyLimits(kVocabulary);
  parts.llm = std::make_unique<FakeModelRunner>(limits, HashModel(1, kVocabulary));
  parts.ssms.push_back(std::make_unique<FakeModelRunner>(limits, HashModel(1, kVocabulary)));
  EngineOptions options;
  options.expansion = *Expansion::Create({2, 1});
  auto model = std::make_shared<LoadedModel>();
  auto host = EngineHost::Create(std::move(parts), options);
  EXPECT_TRUE(host.ok()) << host.status();
  model->host = *std::move(host);
  model->description.set_name("lm");
  model->description.add_ssm_artifacts("small");
  return model;
}

void Answer(EngineHost& host, std::vector<int> prompt, int tokens) {
  const auto ticket = host.Submit(std::move(prompt), {.max_tokens = tokens, .ignore_eos = true},
                                  [](const RequestEvent&) {});
  ASSERT_TRUE(ticket.ok());
  // Statistics are taken over after the events.
  while (host.open() > 0 || host.statistics().running > 0) absl::SleepFor(absl::Milliseconds(1));
}

class MetricsTest : public ::testing::Test {
 protected:
  // Of one series; -1 if it is not there.
  double Value(const std::string& series) {
    serving_.Collect();
    for (absl::string_view line : absl::StrSplit(metrics_.Expose(), '\n')) {
      double value = 0;
      if (absl::ConsumePrefix(&line, absl::StrCat(series, " ")) && absl::SimpleAtod(line, &value)) {
        return value;
      }
    }
    return -1;
  }

  Metrics metrics_;
  ServingMetrics serving_{&metrics_.registry()};
};

TEST_F(MetricsTest, DraftsAreCountedByTreePositionAndPromptsByWhatWasCached) {
  const auto model = Model();
  serving_.Add(model);
  const std::vector<int> prompt(33, 1);
  // The prompt's own step gives one token, each of three trees its path of two and one more.
  Answer(*model->host, prompt, 10);
  const std::string m = "{model_name=\"lm\"}";
  EXPECT_EQ(Value("espalier_spec_decode_num_drafts_total" + m), 3);
  EXPECT_EQ(Value("espalier_spec_decode_num_draft_tokens_total" + m), 12);
  EXPECT_EQ(Value("espalier_spec_decode_num_accepted_tokens_total" + m), 6);
  const auto at = [&](const char* name, int position) {
    return Value(absl::StrCat("espalier_spec_decode_num_", name,
                              "_per_pos_total{model_name=\"lm\",position=\"", position, "\"}"));
  };
  EXPECT_EQ(at("draft_tokens", 0), 6);
  EXPECT_EQ(at("draft_tokens", 1), 6);
  EXPECT_EQ(at("accepted_tokens", 0), 3);
  EXPECT_EQ(at("accepted_tokens", 1), 3);
  EXPECT_EQ(Value("espalier_spec_decode_ssm_active{model_name=\"lm\",ssm=\"small\"}"), 1);
  EXPECT_EQ(Value("espalier_prefix_cache_queries_total" + m), 33);
  EXPECT_EQ(Value("espalier_prefix_cache_hits_total" + m), 0);
  Answer(*model->host, prompt, 10);
  EXPECT_EQ(Value("espalier_prefix_cache_queries_total" + m), 66);
  EXPECT_EQ(Value("espalier_prefix_cache_hits_total" + m), 32);
  EXPECT_EQ(Value("espalier_prompt_tokens_total" + m), 34);
  EXPECT_EQ(Value("espalier_generation_tokens_total" + m), 20);
}

TEST_F(MetricsTest, CountersGoOnWhenAModelIsLoadedAgain) {
  auto model = Model();
  serving_.Add(model);
  Answer(*model->host, {1, 2, 3}, 7);
  serving_.Remove("lm");  // nobody has asked for the metrics until now
  model = Model();
  serving_.Add(model);
  Answer(*model->host, {1, 2, 3}, 4);
  EXPECT_EQ(Value("espalier_generation_tokens_total{model_name=\"lm\"}"), 11);
}

}  // namespace
}  // namespace espalier
