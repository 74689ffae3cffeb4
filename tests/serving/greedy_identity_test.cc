// Speculation never changes the output of real models: an LLM trained by Espalier, the executor,
// paged attention, and SSMs that are good, bad and perfect. Greedy outputs with token trees must
// equal incremental decoding token for token, including near-ties.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "models/llama.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "serving/engine/engine.h"
#include "serving/lossless/lossless.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "tests/plans/in_process_training.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr int kPrompts = 200;
constexpr int kAnswer = 24;
constexpr int kContext = 96;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

LlamaConfig Config(int hidden, int layers) {
  LlamaConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = 2 * hidden;
  config.num_layers = layers;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = hidden / 4;
  config.max_position_embeddings = 256;
  return config;
}

using Parameters = std::map<std::string, std::vector<char>>;

class GreedyIdentity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    registry_ = new OpRegistry;
    RegisterAllOperators(*registry_);
    text_ = new std::string(ReadFile("tests/data/genesis.txt"));
  }
  static void TearDownTestSuite() {
    delete registry_;
    delete text_;
  }

  // Each model is trained once for all tests.
  const Parameters& Trained(const LlamaConfig& config) {
    static std::map<int64_t, Parameters>& known = *new std::map<int64_t, Parameters>;
    const auto [at, is_new] = known.try_emplace(config.hidden_size);
    if (is_new) at->second = Train(config, 120);
    return at->second;
  }

  Parameters Train(const LlamaConfig& config, int steps) {
    auto graph = BuildLlamaTraining(*registry_, config, 32);
    EXPECT_TRUE(graph.ok()) << graph.status();
    EXPECT_TRUE(BindAndInfer(*registry_, 16, &*graph).ok());
    AnalyticCost cost;
    PlanProblem problem;
    problem.registry = registry_;
    problem.graph = &*graph;
    problem.batch_size = 16;
    problem.machine = TestMachine(1);
    problem.optimizer = AdamW(5e-3);
    problem.cost = &cost;
    v1::SearchOptions search;
    search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
    auto plan = MakePlan(problem, search);
    EXPECT_TRUE(plan.ok()) << plan.status();
    auto dataset = Dataset::FromText(*text_, 32, 0.1);
    TrainingRunOptions options;
    options.steps = steps;
    options.batch_size = 16;
    options.lowering.optimizer = AdamW(5e-3);
    options.lowering.seed = 3;
    auto run = TrainInProcess(*registry_, *graph, *plan, *dataset, options);
    EXPECT_TRUE(run.ok()) << run.status();
    return run->parameters;
  }

  // `resident`: the fraction of the parameters that stays on the device.
  std::unique_ptr<ProgramModelRunner> Runner(const LlamaConfig& config,
                                             const Parameters& parameters,
                                             DType kv_cache_dtype = DType::kF32,
                                             double resident = 1) {
    ServingShape shape;
    shape.kv_cache_dtype = kv_cache_dtype;
    shape.max_rows = 320;
    shape.max_output_rows = 320;
    shape.kv_slots = 2048;
    shape.max_sequences = 16;
    shape.max_context_slots = 2048;
    shape.max_ancestor_slots = 320 * 16;
    auto graph = BuildLlamaServing(*registry_, config, shape);
    EXPECT_TRUE(graph.ok()) << graph.status();
    EXPECT_TRUE(BindAndInfer(*registry_, 1, &*graph).ok());
    ServingLowering lowering;
    if (resident < 1) {
      lowering.resident_weight_bytes =
          static_cast<int64_t>(resident * 4 * static_cast<double>(CountParameters(config)));
    }
    auto program = LowerServing(*registry_, *graph, lowering);
    EXPECT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(resident<1, program->host_bytes()> 0);
    devices_.push_back(NewCpuDevice({1, int64_t{4} << 30}));
    auto runner = ProgramModelRunner::Create(*program, "", 256, devices_.back().get());
    EXPECT_TRUE(runner.ok()) << runner.status();
    for (const auto& [name, bytes] : parameters) {
      const int buffer = (*runner)->executor().FindBuffer(name);
      EXPECT_GE(buffer, 0) << name;
      EXPECT_TRUE((*runner)
                      ->executor()
                      .WriteBuffer(buffer, bytes.data(), static_cast<int64_t>(bytes.size()))
                      .ok());
    }
    return *std::move(runner);
  }

  struct Outcome {
    std::vector<std::vector<int>> answers;
    double accepted_per_verification = 0;
  };

  Outcome Generate(ModelRunner* llm, const std::vector<ModelRunner*>& ssms,
                   const std::vector<int>& shape) {
    auto tokenizer = ByteTokenizer::Create();
    EngineOptions options;
    auto expansion = Expansion::Create(shape);
    EXPECT_TRUE(expansion.ok()) << expansion.status();
    options.expansion = *expansion;
    options.max_requests = 12;
    options.max_tokens_per_batch = 320;  // no tree is ever cut for lack of rows
    options.max_queue = kPrompts;
    options.max_sequence_length = kContext;
    auto engine = Engine::Create(llm, ssms, tokenizer->get(), options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    Outcome outcome;
    std::map<RequestId, int> index;
    for (int i = 0; i < kPrompts; ++i) {
      // Prompts of all lengths, from all over the text.
      const std::string prompt = text_->substr(i * 571 % (text_->size() - 100), 3 + i % 50);
      RequestOptions request;
      request.max_tokens = kAnswer;
      auto id = (*engine)->Submit((*tokenizer)->Encode(prompt), request);
      EXPECT_TRUE(id.ok()) << id.status();
      index[*id] = i;
    }
    outcome.answers.resize(kPrompts);
    while (!(*engine)->idle()) {
      const absl::Status step = (*engine)->Step();
      if (!step.ok()) {
        ADD_FAILURE() << step;
        break;
      }
      for (const RequestEvent& event : (*engine)->TakeEvents()) {
        auto& answer = outcome.answers[index.at(event.id)];
        answer.insert(answer.end(), event.tokens.begin(), event.tokens.end());
      }
      EXPECT_TRUE((*engine)->CheckInvariants().ok());
    }
    const EngineStatistics s = (*engine)->statistics();
    if (s.verifications > 0) {
      outcome.accepted_per_verification =
          static_cast<double>(s.accepted_tokens) / static_cast<double>(s.verifications);
    }
    return outcome;
  }

  static OpRegistry* registry_;
  static std::string* text_;
  std::vector<std::unique_ptr<Device>> devices_;
};

OpRegistry* GreedyIdentity::registry_ = nullptr;
std::string* GreedyIdentity::text_ = nullptr;

// All checks of serving/lossless, for every drafting method.
TEST_F(GreedyIdentity, LosslessChecksPassForTrainedModels) {
  const LlamaConfig large = Config(48, 2), small = Config(16, 1);
  const auto llm = Runner(large, Trained(large));
  const auto good = Runner(small, Trained(small));
  const auto random = Runner(small, {});  // randomly initialized
  auto tokenizer = ByteTokenizer::Create();
  struct Way {
    const char* name;
    const char* expansion;
    SpeculationOptions speculation;
  };
  for (const Way& way : std::vector<Way>{
           {"tree", "1,2,1", {}},
           {"one level", "3,1", {}},
           {"best first", "", {.max_nodes = 12, .sampled = SampledDrafting::kCoupled}},
           {"tuned, with n-gram drafts",
            "",
            {.tune = true, .sampled = SampledDrafting::kCoupled, .ngram = {.depth = 4}}}}) {
    LosslessOptions options;
    options.engine.expansion = *Expansion::Parse(way.expansion);
    options.engine.speculation = way.speculation;
    options.engine.speculation.calibration_seconds = 0.1;
    options.engine.seconds = [] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); };
    options.draws = 2000;
    for (int i = 0; i < 12; ++i) {
      options.prompts.push_back(
          (*tokenizer)->Encode(text_->substr(i * 1571 % (text_->size() - 100), 10 + i * 3)));
    }
    const auto report = VerifyLossless(*llm, {good.get(), random.get()}, **tokenizer, options);
    ASSERT_TRUE(report.ok()) << way.name << ": " << report.status();
    for (const LosslessCheck& check : report->checks) {
      EXPECT_TRUE(check.passed) << way.name << ", " << check.name << ": " << check.detail;
      std::printf("%-20s %-12s %s\n", way.name, check.name.c_str(), check.detail.c_str());
    }
    // A tuned engine uses this machine's clock: it may find that drafting does not pay.
    if (!way.speculation.tune) {
      EXPECT_GT(report->accepted_per_step, 0.2) << way.name;
    }
  }
}

TEST_F(GreedyIdentity, TreesOfFiveShapesAndFourKindsOfSsmGiveTheIncrementalAnswer) {
  const LlamaConfig large = Config(48, 2), small = Config(16, 1);
  const Parameters &trained = Trained(large), &trained_small = Trained(small);
  const auto llm = Runner(large, trained);
  const auto twin = Runner(large, trained);
  const auto good = Runner(small, trained_small);
  const auto random = Runner(small, {});  // keeps its initial values
  const Outcome incremental = Generate(llm.get(), {}, {});
  for (const auto& answer : incremental.answers) ASSERT_EQ(answer.size(), kAnswer);
  const struct {
    const char* name;
    std::vector<ModelRunner*> ssms;
  } drafts[] = {{"trained SSM", {good.get()}},
                {"random SSM", {random.get()}},
                {"SSM = LLM", {twin.get()}},
                {"trained and random SSM", {good.get(), random.get()}}};
  const std::vector<std::vector<int>> shapes = {
      {1, 1, 1, 1}, {1, 1, 3, 1, 1}, {4}, {2, 2, 2}, {3, 2, 1, 1}};
  double good_acceptance = 0;
  for (const auto& draft : drafts) {
    for (const std::vector<int>& shape : shapes) {
      const Outcome outcome = Generate(llm.get(), draft.ssms, shape);
      int different = 0;
      for (int i = 0; i < kPrompts; ++i) different += outcome.answers[i] != incremental.answers[i];
      std::string text;
      for (int children : shape) absl::StrAppend(&text, text.empty() ? "" : ",", children);
      std::printf("%-24s <%s>: %d of %d answers differ, %.2f accepted per verification\n",
                  draft.name, text.c_str(), different, kPrompts, outcome.accepted_per_verification);
      EXPECT_EQ(different, 0) << draft.name << " " << text;
      if (draft.ssms[0] == twin.get()) {
        // A perfect draft is accepted to its full depth, but for the ends of answers.
        EXPECT_GT(outcome.accepted_per_verification, 0.75 * static_cast<double>(shape.size()));
      }
      if (draft.ssms.size() == 1 && draft.ssms[0] == good.get()) {
        good_acceptance = std::max(good_acceptance, outcome.accepted_per_verification);
      }
    }
  }
  EXPECT_GT(good_acceptance, 0.5);  // the trained draft is worth something
}

TEST_F(GreedyIdentity, TreesGiveTheIncrementalAnswerInEveryKvFormatAndWithStreamedWeights) {
  const LlamaConfig large = Config(48, 2), small = Config(16, 1);
  const Parameters &trained = Trained(large), &trained_small = Trained(small);
  std::map<DType, std::vector<std::vector<int>>> answers;
  for (const DType format : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    const auto llm = Runner(large, trained, format);
    const auto streaming = Runner(large, trained, format, 0.7);
    const auto ssm = Runner(small, trained_small, format);
    answers[format] = Generate(llm.get(), {}, {}).answers;
    const Outcome trees = Generate(llm.get(), {ssm.get()}, {1, 2, 1});
    EXPECT_EQ(trees.answers, answers[format]) << Name(format);
    EXPECT_GT(trees.accepted_per_verification, 0.3) << Name(format);
    EXPECT_EQ(Generate(streaming.get(), {ssm.get()}, {2, 1}).answers, answers[format])
        << Name(format);
    int same = 0;
    for (int i = 0; i < kPrompts; ++i) same += answers[format][i] == answers[DType::kF32][i];
    std::printf("KV cache of %s: %d of %d answers are those of f32\n", Name(format), same,
                kPrompts);
    // Rounding may flip near-ties only.
    EXPECT_GT(same, kPrompts * 3 / 4) << Name(format);
  }
}

}  // namespace
}  // namespace espalier
