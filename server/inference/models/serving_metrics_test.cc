// Metrics after real requests on a real engine.
#include "server/inference/models/serving_metrics.h"

#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/models/model_server.h"
#include "server/inference/requests/generation.h"
#include "server/metrics/metrics.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kVocabulary = 10;

struct ModelOptions {
  int kv_slots = 0;  // 0: enough
  int hidden = 0;
  // A row that sees this many tokens waits for the notification.
  std::map<size_t, std::shared_ptr<absl::Notification>> gates;
  std::vector<std::string> adapters;
};

// An SSM identical to the LLM, so that all nodes of the path are accepted. With adapters there is
// no SSM and requests run one by one.
std::shared_ptr<LoadedModel> Model(const ModelOptions& given = {}) {
  EngineParts parts;
  parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
  RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
  limits.hidden = given.hidden;
  if (given.kv_slots > 0) limits.kv_slots = given.kv_slots;
  FakeModel fake = HashModel(1, kVocabulary);
  const FakeModel gated = [given, fake](absl::Span<const int> path) {
    const auto gate = given.gates.find(path.size());
    if (gate != given.gates.end()) gate->second->WaitForNotification();
    return fake(path);
  };
  auto llm = std::make_unique<FakeModelRunner>(limits, gated);
  EngineOptions options;
  if (given.adapters.empty()) {
    parts.ssms.push_back(std::make_unique<FakeModelRunner>(limits, fake));
    options.expansion = *Expansion::Create({2, 1});
  } else {
    llm->SetAdapters(std::vector<FakeModel>(given.adapters.size(), gated));
    options.max_requests = 1;
  }
  parts.llm = std::move(llm);
  options.seconds = [] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); };
  auto model = std::make_shared<LoadedModel>();
  auto engine = AsyncEngine::Create(std::move(parts), options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  model->engine = *std::move(engine);
  model->description.set_name("lm");
  model->description.add_ssm_artifacts("small");
  for (const std::string& name : given.adapters) model->description.add_adapters()->set_name(name);
  return model;
}

void Answer(AsyncEngine& engine, std::vector<int> prompt, int tokens) {
  const auto ticket = engine.Submit(
      std::move(prompt), {.max_tokens = tokens, .ignore_eos = true},
      [](const RequestEvent& event) { EXPECT_TRUE(event.error.ok()) << event.error; });
  ASSERT_TRUE(ticket.ok());
  // Statistics are updated after the events.
  while (engine.open() > 0 || engine.statistics().running > 0)
    absl::SleepFor(absl::Milliseconds(1));
}

class MetricsTest : public ::testing::Test {
 protected:
  // Returns the value of one series, or -1.
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

TEST_F(MetricsTest, DraftsAreCountedByDepthAndPromptsByCacheHits) {
  const auto model = Model();
  serving_.Add(model);
  const std::vector<int> prompt(33, 1);
  // The prompt's step gives one token, each of three trees its path of two and one more.
  Answer(*model->engine, prompt, 10);
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
  Answer(*model->engine, prompt, 10);
  EXPECT_EQ(Value("espalier_prefix_cache_queries_total" + m), 66);
  EXPECT_EQ(Value("espalier_prefix_cache_hits_total" + m), 32);
  EXPECT_EQ(Value("espalier_prompt_tokens_total" + m), 66);
  EXPECT_EQ(Value("espalier_prompt_tokens_cached_total" + m), 32);
  const auto from = [&](const char* source) {
    return Value(absl::StrCat("espalier_prompt_tokens_by_source_total{model_name=\"lm\",source=\"",
                              source, "\"}"));
  };
  EXPECT_EQ(from("local_compute"), 34);
  EXPECT_EQ(from("local_cache_hit"), 32);
  EXPECT_EQ(Value("espalier_prompt_tokens_computed_total" + m), 34);
  EXPECT_EQ(Value("espalier_generation_tokens_total" + m), 20);
  // Each step's tokens once.
  EXPECT_EQ(Value("espalier_iteration_tokens_sum" + m), 34 + 20);
  EXPECT_EQ(Value("espalier_iteration_tokens_count" + m), Value("espalier_engine_steps_total" + m));
  EXPECT_EQ(Value("espalier_iteration_tokens_bucket{model_name=\"lm\",le=\"16\"}") + 1,
            Value("espalier_engine_steps_total" + m))
      << "only the first prompt's own step had more";
}

TEST_F(MetricsTest, KvBlocksAreTimedOnReuseAndEviction) {
  // Room for one prompt and its answer: another prompt evicts the first.
  const auto model = Model({.kv_slots = 96});
  serving_.Add(model);
  Answer(*model->engine, std::vector<int>(33, 1), 10);
  const std::string m = "_count{model_name=\"lm\"}";
  EXPECT_EQ(Value("espalier_kv_block_reuse_gap_seconds" + m), 0);
  Answer(*model->engine, std::vector<int>(33, 1), 10);
  EXPECT_EQ(Value("espalier_kv_block_reuse_gap_seconds" + m), 2);
  EXPECT_EQ(Value("espalier_kv_block_lifetime_seconds" + m), 0);
  Answer(*model->engine, std::vector<int>(64, 2), 10);
  const double evicted = Value("espalier_kv_block_lifetime_seconds" + m);
  EXPECT_GT(evicted, 0);
  EXPECT_EQ(Value("espalier_kv_block_idle_before_evict_seconds" + m), evicted);
  EXPECT_EQ(static_cast<double>(model->engine->statistics().kv.evicted_total), evicted);
  EXPECT_GT(Value("espalier_kv_block_lifetime_seconds_sum{model_name=\"lm\"}"), 0);
}

TEST_F(MetricsTest, ARequestIsCountedOnceHoweverManyAnswersItHas) {
  const auto model = Model();
  model->grammars = std::make_unique<GrammarCache>(model->engine->shared_tokenizer());
  v1::GenerateRequest request;
  request.set_text("abc");
  request.set_n(3);
  request.set_max_tokens(7);
  request.set_ignore_eos(true);
  ModelServer models({});
  for (const int best_of : {3, 5}) {
    request.set_best_of(best_of);
    absl::Notification done;
    const auto running = StartGeneration(request, model, &models, &serving_,
                                         [&](const absl::StatusOr<v1::GenerateReply>&, bool last) {
                                           if (last) done.Notify();
                                         });
    ASSERT_TRUE(running.ok()) << running.status();
    done.WaitForNotification();
  }
  const std::string m = "{model_name=\"lm\"}";
  EXPECT_EQ(Value("espalier_request_params_n_count" + m), 2);
  EXPECT_EQ(Value("espalier_request_params_n_sum" + m), 6);
  EXPECT_EQ(Value("espalier_request_max_num_generation_tokens_count" + m), 2);
  EXPECT_EQ(Value("espalier_request_max_num_generation_tokens_sum" + m), 14);
  // Each answer has its own times and sizes.
  EXPECT_EQ(Value("espalier_request_generation_tokens_sum" + m), 56);
  EXPECT_EQ(Value("espalier_e2e_request_latency_seconds_count" + m), 8);
  EXPECT_EQ(Value("espalier_request_success_total{finished_reason=\"length\",model_name=\"lm\"}"),
            8);
}

TEST_F(MetricsTest, EmbeddingsHaveALatencyAndNoAnswer) {
  const auto model = Model({.hidden = 4});
  serving_.Add(model);
  absl::Notification done;
  RequestOptions options;
  options.embed = true;
  const auto ticket = model->engine->Submit({1, 2, 3}, options, [&](const RequestEvent& event) {
    serving_.RequestFinished("lm", v1::GenerateRequest::default_instance(), event);
    done.Notify();
  });
  ASSERT_TRUE(ticket.ok());
  done.WaitForNotification();
  const std::string m = "{model_name=\"lm\"}";
  for (const char* name : {"e2e_request_latency_seconds", "request_queue_time_seconds",
                           "request_inference_time_seconds", "request_prefill_time_seconds",
                           "request_prompt_tokens"}) {
    EXPECT_EQ(Value(absl::StrCat("espalier_", name, "_count", m)), 1) << name;
  }
  EXPECT_EQ(Value("espalier_request_prompt_tokens_sum" + m), 3);
  EXPECT_EQ(Value("espalier_time_to_first_token_seconds_count" + m), -1);
  EXPECT_EQ(Value("espalier_request_generation_tokens_count" + m), -1);
  while (model->engine->statistics().whole_prompt_tokens == 0)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(Value("espalier_prompt_tokens_total" + m), 3);
}

TEST_F(MetricsTest, AdaptersAreNamedWhileTheyAreUsedOrWaitedFor) {
  const auto first = std::make_shared<absl::Notification>();
  const auto third = std::make_shared<absl::Notification>();
  const auto model = Model({.gates = {{2, first}, {4, third}}, .adapters = {"poet", "clerk"}});
  serving_.Add(model);
  const auto info = [](const std::string& running, const std::string& waiting) {
    return absl::StrCat("espalier_lora_requests_info{max_lora=\"2\",model_name=\"lm\",",
                        "running_lora_adapters=\"", running, "\",waiting_lora_adapters=\"", waiting,
                        "\"}");
  };
  EXPECT_GT(Value(info("", "")), 1.7e9) << "a time in our century";
  for (const int adapter : {1, 0}) {
    RequestOptions options{.max_tokens = 3, .ignore_eos = true};
    options.adapter = adapter;
    ASSERT_TRUE(model->engine->Submit({1, 2}, options, [](const RequestEvent&) {}).ok());
  }
  // Both arrive before the first one's prefill ends; its third step blocks, and statistics are
  // those of the second.
  first->Notify();
  for (int i = 0; i < 10000 && Value(info("clerk", "poet")) < 0; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GT(Value(info("clerk", "poet")), 0);
  EXPECT_EQ(Value(info("", "")), -1);
  third->Notify();
  while (model->engine->open() > 0 || model->engine->statistics().running > 0) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GT(Value(info("", "")), 0);
  EXPECT_EQ(Value(info("clerk", "poet")), -1) << "no longer true";
  serving_.Remove("lm");
  EXPECT_EQ(Value(info("", "")), -1);
}

TEST_F(MetricsTest, ModelInfoSeriesAreRemovedWithTheModel) {
  const auto model = Model();
  serving_.Add(model);
  const std::string active = "espalier_spec_decode_ssm_active{model_name=\"lm\",ssm=\"small\"}";
  EXPECT_EQ(Value(active), 1);
  EXPECT_THAT(metrics_.Expose(), HasSubstr("espalier_cache_config_info{"));
  serving_.Remove("lm");
  EXPECT_EQ(Value(active), -1) << "an alert on it would last for ever";
  EXPECT_THAT(metrics_.Expose(), Not(HasSubstr("espalier_cache_config_info{")));
  EXPECT_EQ(Value("espalier_num_requests_waiting_by_reason{model_name=\"lm\",reason=\"capacity\"}"),
            0);
}

// An idle engine does not notice a reconnected SSM, so an alert on the engine's state would last
// until the next request.
TEST_F(MetricsTest, AnSsmDraftsIfItsWorkersAreThere) {
  const auto model = Model();
  model->description.add_ssm_placements();
  std::string state;
  model->describe = [&state](v1::ServedModel* served) {
    served->mutable_ssm_placements(0)->set_state(state);
  };
  serving_.Add(model);
  const std::string active = "espalier_spec_decode_ssm_active{model_name=\"lm\",ssm=\"small\"}";
  EXPECT_EQ(Value(active), 1);
  state = "waits for a worker";
  EXPECT_EQ(Value(active), 0);
  state = "ready";
  EXPECT_EQ(Value(active), 1);
}

// Slots leaked by a cancelled request would go unnoticed.
TEST_F(MetricsTest, SsmKvUsageRisesAndReturnsToZero) {
  const auto gate = std::make_shared<absl::Notification>();
  const auto model = Model({.gates = {{12, gate}}});
  serving_.Add(model);
  const std::string usage =
      "espalier_spec_decode_ssm_kv_cache_usage_ratio{model_name=\"lm\",ssm=\"small\"}";
  EXPECT_EQ(Value(usage), 0);
  absl::Notification over;
  const auto ticket = model->engine->Submit({1, 2, 3}, {.max_tokens = 1000, .ignore_eos = true},
                                            [&](const RequestEvent& event) {
                                              if (event.finished) over.Notify();
                                            });
  ASSERT_TRUE(ticket.ok());
  while (Value(usage) <= 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_LE(Value(usage), 1);
  model->engine->Cancel(*ticket);
  gate->Notify();
  over.WaitForNotification();
  while (model->engine->statistics().running > 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(Value(usage), 0);
  serving_.Remove("lm");
  EXPECT_EQ(Value(usage), -1);
}

TEST_F(MetricsTest, CountersContinueAcrossReloads) {
  auto model = Model();
  serving_.Add(model);
  Answer(*model->engine, {1, 2, 3}, 7);
  serving_.Remove("lm");  // no Collect until now
  model = Model();
  serving_.Add(model);
  Answer(*model->engine, {1, 2, 3}, 4);
  EXPECT_EQ(Value("espalier_generation_tokens_total{model_name=\"lm\"}"), 11);
}

}  // namespace
}  // namespace espalier
