#include "planner/serving/place_serving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/cost/analytic_cost.h"
#include "planner/serving/placement_latency.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

LlamaConfig Config(int64_t hidden, int64_t layers, int64_t kv_heads) {
  LlamaConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = 2 * hidden;
  config.num_layers = layers;
  config.num_heads = 8;
  config.num_kv_heads = kv_heads;
  config.head_dim = hidden / 8;
  return config;
}

Graph Serving(const LlamaConfig& config, int rows, int slots) {
  ServingShape shape{.max_rows = rows,
                     .max_output_rows = rows,
                     .kv_slots = slots,
                     .max_sequences = 4,
                     .max_context_slots = slots,
                     .max_ancestor_slots = 4 * rows};
  return Bound(BuildLlamaServing(TestRegistry(), config, shape), 1);
}

struct Model {
  explicit Model(const LlamaConfig& config)
      : full(Serving(config, 64, 1024)),
        step(Serving(config, 12, 256)),
        half(Serving(config, 6, 128)),
        third(Serving(config, 4, 96)) {}
  Graph full, step, half, third;
  PlacedModel Placed(const std::string& name, double steps) const {
    return {name, &full, &step, steps};
  }
};

v1::Device Cpu(double bandwidth, int64_t memory) {
  v1::Device device;
  device.set_kind(v1::Device::CPU);
  device.set_memory_bandwidth(bandwidth);
  device.set_matmul_flops(4 * bandwidth);
  device.set_op_overhead_seconds(2e-6);
  device.set_memory_bytes(memory);
  return device;
}

class PlaceServingTest : public testing::Test {
 protected:
  PlaceServingTest() : llm_(Config(256, 4, 4)), ssm_(Config(64, 2, 2)) {
    problem_.registry = &TestRegistry();
    problem_.cost = &cost_;
    problem_.models = {llm_.Placed("llm", 1), ssm_.Placed("ssm", 3)};
    problem_.machine.link.set_bandwidth(2e9);
    problem_.machine.link.set_latency_seconds(2e-5);
    problem_.tokens_per_round = 9;
  }

  // Concurrent steps: one per stage, up to `most`.
  void SetConcurrentSteps(int most) {
    const Model* models[] = {&llm_, &ssm_};
    for (size_t m = 0; m < problem_.models.size(); ++m) {
      problem_.models[m].concurrent = {&models[m]->half, &models[m]->third};
      problem_.models[m].concurrent.resize(static_cast<size_t>(most) - 1);
    }
  }

  std::vector<ServingChoice> Place() {
    absl::StatusOr<std::vector<ServingChoice>> placed = PlaceServing(problem_);
    EXPECT_TRUE(placed.ok()) << placed.status();
    return placed.ok() ? *std::move(placed) : std::vector<ServingChoice>();
  }

  static bool Fits(const ServingProblem& problem, const std::vector<PredictedPlacement>& models) {
    int64_t own = 0;
    std::vector<int64_t> held(problem.machine.devices.size(), 0);
    for (const PredictedPlacement& placed : models) {
      if (placed.own()) own += placed.bytes[0];
      for (int d : placed.devices) {
        int64_t& here = held[static_cast<size_t>(d)];
        here += *std::max_element(placed.bytes.begin(), placed.bytes.end());
        if (here > problem.machine.devices[static_cast<size_t>(d)].memory_bytes()) return false;
      }
    }
    return own == 0 || own <= problem.own->memory_bytes();
  }

  // Number of workers that hold parts of several models.
  static int Shared(const ServingChoice& choice) {
    std::map<int, int> models;
    for (const PredictedPlacement& placed : choice.models) {
      for (int d : placed.devices) ++models[d];
    }
    return static_cast<int>(
        std::count_if(models.begin(), models.end(), [](const auto& m) { return m.second > 1; }));
  }

  // Bytes of a model on one worker.
  int64_t Whole(size_t model) {
    const auto placed = PredictPlacement(problem_, problem_.models[model], {1, 1}, {0});
    EXPECT_TRUE(placed.ok()) << placed.status();
    return placed.ok() ? placed->bytes[0] : 0;
  }

  // Brute force: the most tokens per second of any choice; 0: none fits.
  double ByEnumeration() {
    const int devices = static_cast<int>(problem_.machine.devices.size());
    double best = 0;
    std::vector<PredictedPlacement> chosen;
    std::vector<std::vector<PredictedPlacement>> placements(problem_.models.size());
    for (size_t m = 0; m < problem_.models.size(); ++m) {
      const auto add = [&](const ServingDegrees& degrees, const std::vector<int>& at) {
        auto placed = PredictPlacement(problem_, problem_.models[m], degrees, at);
        if (placed.ok()) placements[m].push_back(*std::move(placed));
      };
      if (problem_.own.has_value()) add({1, 1}, {});
      for (int subset = 1; subset < 1 << devices; ++subset) {
        std::vector<int> at;
        for (int d = 0; d < devices; ++d) {
          if (subset >> d & 1) at.push_back(d);
        }
        const int count = static_cast<int>(at.size());
        for (int tensor = 1; tensor <= count; ++tensor) {
          if (count % tensor == 0) add({tensor, count / tensor}, at);
        }
      }
    }
    const std::function<void(size_t)> choose = [&](size_t m) {
      if (m == problem_.models.size()) {
        const double seconds = RoundLatencyOf(problem_, chosen).seconds;
        if (Fits(problem_, chosen)) best = std::max(best, problem_.tokens_per_round / seconds);
        return;
      }
      for (const PredictedPlacement& placed : placements[m]) {
        chosen.push_back(placed);
        choose(m + 1);
        chosen.pop_back();
      }
    };
    choose(0);
    return best;
  }

  // Random mixed machines, with memory for all, some or none of the models.
  void Draw(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto pick = [&](std::vector<double> of) { return of[random() % of.size()]; };
    // With memory for each of them, but not for both.
    problem_.machine.devices = {Cpu(1e10, 0)};
    const double tight = static_cast<double>(Whole(0) + Whole(1) / 2);
    problem_.machine.devices.clear();
    for (int d = 2 + static_cast<int>(random() % 2); d > 0; --d) {
      problem_.machine.devices.push_back(Cpu(
          pick({5e9, 5e9, 4e10}),
          static_cast<int64_t>(pick({2.0 * kMiB, 4.0 * kMiB, 9.0 * kMiB, tight, 40.0 * kMiB}))));
    }
    // Canonical order: the search does not permute ranks.
    std::stable_sort(problem_.machine.devices.begin(), problem_.machine.devices.end(),
                     [](const v1::Device& a, const v1::Device& b) {
                       return a.memory_bandwidth() > b.memory_bandwidth();
                     });
    problem_.own.reset();
    if (random() % 4 != 0) {
      problem_.own = Cpu(pick({2e9, 2e10}), static_cast<int64_t>(pick({2, 20, 60}) * kMiB));
    }
    problem_.machine.link.set_latency_seconds(pick({1e-6, 2e-4}));
    problem_.remote_seconds = pick({0, 3e-4});
    SetConcurrentSteps(1 + static_cast<int>(random() % 3));
  }

  AnalyticCost cost_;
  Model llm_, ssm_;
  ServingProblem problem_;
};

TEST_F(PlaceServingTest, MatchesBruteForceAndFitsMemory) {
  int placed = 0, refused = 0, shared = 0, apart = 0, together = 0;
  for (int seed = 0; seed < 40; ++seed) {
    Draw(seed);
    SCOPED_TRACE(absl::StrCat("machine ", seed));
    const double best = ByEnumeration();
    const absl::StatusOr<std::vector<ServingChoice>> choices = PlaceServing(problem_);
    if (best == 0) {
      ++refused;
      EXPECT_EQ(choices.status().code(), absl::StatusCode::kResourceExhausted) << choices.status();
      continue;
    }
    ++placed;
    ASSERT_TRUE(choices.ok()) << choices.status();
    EXPECT_NEAR((*choices)[0].tokens_per_second, best, 1e-9 * best);
    ++(Shared((*choices)[0]) > 0 ? shared : apart);
    double before = best * 2;
    for (const ServingChoice& choice : *choices) {
      if (!choice.refused.empty()) {
        EXPECT_FALSE(Fits(problem_, choice.models)) << choice.refused;
        continue;
      }
      ASSERT_EQ(choice.models.size(), problem_.models.size());
      EXPECT_TRUE(Fits(problem_, choice.models));
      EXPECT_LE(choice.tokens_per_second, before);
      before = choice.tokens_per_second;
      // Concurrent steps take no longer than sequential ones, and no less than one alone.
      const double round = problem_.tokens_per_round / choice.tokens_per_second;
      const double share = choice.llm_seconds + choice.draft_seconds;
      EXPECT_GE(round, share * (1 - 1e-9));
      EXPECT_LE(round, choice.concurrent_steps * share * (1 + 1e-9));
      together += choice.concurrent_steps > 1;
    }
  }
  EXPECT_GT(placed, 5);
  EXPECT_GT(refused, 1);
  EXPECT_GT(shared, 2);
  EXPECT_GT(apart, 2);
  EXPECT_GT(together, 2);
}

TEST_F(PlaceServingTest, ConcurrentStepsMakePipelinesFaster) {
  problem_.machine.devices = {Cpu(1e10, 64 * kMiB), Cpu(1e10, 64 * kMiB)};
  problem_.own = Cpu(4e10, 64 * kMiB);
  problem_.remote_seconds = 1e-5;
  const auto rate = [&](const PredictedPlacement& llm, const PredictedPlacement& ssm) {
    return 1 / RoundLatencyOf(problem_, {llm, ssm}).seconds;
  };
  const auto placed = [&](size_t m, const ServingDegrees& degrees,
                          const std::vector<int>& devices) {
    const auto found = PredictPlacement(problem_, problem_.models[m], degrees, devices);
    EXPECT_TRUE(found.ok()) << found.status();
    return *found;
  };
  const double one_step = rate(placed(0, {1, 2}, {0, 1}), placed(1, {1, 1}, {}));
  SetConcurrentSteps(2);
  const PredictedPlacement stages = placed(0, {1, 2}, {0, 1}), here = placed(1, {1, 1}, {});
  const RoundLatency round = RoundLatencyOf(problem_, {stages, here});
  EXPECT_EQ(round.concurrent_steps, 2);
  EXPECT_GT(rate(stages, here), 1.2 * one_step);
  EXPECT_LT(rate(stages, here), 2 * one_step);
  // Both halves of the layers take about as long: two shares take the time of one alone, plus the
  // other's drafts and messages.
  EXPECT_NEAR(round.seconds, round.llm_seconds + round.draft_seconds,
              0.25 * (round.llm_seconds + round.draft_seconds));
  // Not with an SSM on a worker.
  EXPECT_EQ(RoundLatencyOf(problem_, {stages, placed(1, {1, 1}, {1})}).concurrent_steps, 1);
  // A coordinator that drafts for longer than a stage takes delays both shares.
  problem_.own = Cpu(1e8, 64 * kMiB);
  const PredictedPlacement slow = placed(1, {1, 1}, {});
  EXPECT_NEAR(RoundLatencyOf(problem_, {stages, slow}).seconds,
              2 * slow.concurrent.at(2).seconds * problem_.models[1].steps, 1e-12);
}

TEST_F(PlaceServingTest, FasterMachinesAreNeverSlower) {
  for (int seed = 0; seed < 12; ++seed) {
    Draw(seed);
    SCOPED_TRACE(absl::StrCat("machine ", seed));
    const absl::StatusOr<std::vector<ServingChoice>> before = PlaceServing(problem_);
    if (!before.ok()) continue;
    const ServingProblem kept = problem_;
    const auto expect_no_slower = [&](const char* what) {
      const std::vector<ServingChoice> after = Place();
      ASSERT_FALSE(after.empty());
      EXPECT_GE(after[0].tokens_per_second, (*before)[0].tokens_per_second * (1 - 1e-9)) << what;
      problem_ = kept;
    };
    for (v1::Device& device : problem_.machine.devices) {
      device.set_memory_bandwidth(2 * device.memory_bandwidth());
    }
    expect_no_slower("memory bandwidth");
    problem_.machine.link.set_bandwidth(3 * problem_.machine.link.bandwidth());
    expect_no_slower("link bandwidth");
    problem_.machine.link.set_latency_seconds(problem_.machine.link.latency_seconds() / 2);
    expect_no_slower("link latency");
    for (v1::Device& device : problem_.machine.devices) {
      device.set_memory_bytes(2 * device.memory_bytes());
    }
    expect_no_slower("memory");
    problem_.machine.devices.push_back(problem_.machine.devices[0]);
    expect_no_slower("one more worker");
  }
}

TEST_F(PlaceServingTest, ChoosesTheObviousPlacement) {
  // Two fast workers and a slow coordinator: the LLM's matrices are read in halves.
  problem_.machine.devices = {Cpu(1e10, 64 * kMiB), Cpu(1e10, 64 * kMiB)};
  problem_.machine.link.set_latency_seconds(1e-6);
  problem_.own = Cpu(5e9, 64 * kMiB);
  problem_.remote_seconds = 1e-5;
  std::vector<ServingChoice> choices = Place();
  ASSERT_FALSE(choices.empty());
  EXPECT_EQ(choices[0].models[0].degrees.tensor_parallel, 2);
  EXPECT_FALSE(choices[0].models[1].own());
  EXPECT_GT(Shared(choices[0]), 0) << "there is no other worker";
  // Without the memory for both, the coordinator drafts.
  const auto half = PredictPlacement(problem_, problem_.models[0], {2, 1}, {0, 1});
  ASSERT_TRUE(half.ok()) << half.status();
  const int64_t needed = *std::max_element(half->bytes.begin(), half->bytes.end());
  for (v1::Device& device : problem_.machine.devices) device.set_memory_bytes(needed);
  choices = Place();
  ASSERT_FALSE(choices.empty());
  EXPECT_EQ(choices[0].models[0].degrees.tensor_parallel, 2);
  EXPECT_TRUE(choices[0].models[1].own());
  for (v1::Device& device : problem_.machine.devices) device.set_memory_bytes(64 * kMiB);
  // A third worker takes the SSM, unless the round trip takes longer than its steps.
  problem_.machine.devices.push_back(Cpu(1e10, 64 * kMiB));
  choices = Place();
  EXPECT_THAT(choices[0].models[1].devices, Contains(2));
  problem_.remote_seconds = 1e-3;
  choices = Place();
  EXPECT_FALSE(choices[0].models[0].own());
  EXPECT_TRUE(choices[0].models[1].own());
  // A coordinator as fast as any worker keeps everything, without a round trip.
  problem_.own = Cpu(1e11, 64 * kMiB);
  choices = Place();
  for (const PredictedPlacement& placed : choices[0].models) EXPECT_TRUE(placed.own());
  // Of equally good placements, the one with the fewest workers: a model that needs no second stage
  // has none.
  problem_.own.reset();
  problem_.models.pop_back();
  problem_.machine.link.set_latency_seconds(1);
  choices = Place();
  EXPECT_EQ(choices[0].models[0].degrees.ranks(), 1);
}

TEST_F(PlaceServingTest, ModelsShareAWorkerIfFasterOrNecessary) {
  problem_.machine.link.set_latency_seconds(1);  // makes splitting unattractive
  const auto expect = [&](int llm, int ssm, const char* why) {
    const std::vector<ServingChoice> choices = Place();
    ASSERT_FALSE(choices.empty()) << why;
    EXPECT_EQ(choices[0].models[0].devices, std::vector<int>{llm}) << why;
    EXPECT_EQ(choices[0].models[1].devices, std::vector<int>{ssm}) << why;
  };
  problem_.machine.devices = {Cpu(1e10, 64 * kMiB), Cpu(1e10, 64 * kMiB)};
  expect(0, 1, "of places that are as fast, the one where one loss is that of one model");
  problem_.machine.devices[1].set_memory_bandwidth(5e9);
  expect(0, 0, "the other one is slower");
  const int64_t llm = Whole(0), ssm = Whole(1);
  problem_.machine.devices[0].set_memory_bytes(llm + ssm);
  expect(0, 0, "exactly the memory of both");
  problem_.machine.devices[0].set_memory_bytes(llm + ssm - 1);
  expect(0, 1, "a byte less");
  problem_.machine.devices.resize(1);
  EXPECT_EQ(PlaceServing(problem_).status().code(), absl::StatusCode::kResourceExhausted);
  problem_.machine.devices[0].set_memory_bytes(llm + ssm);
  expect(0, 0, "there is no other");
}

TEST_F(PlaceServingTest, StreamedWeightsTradeTimeForMemory) {
  problem_.models.pop_back();
  problem_.machine.devices = {Cpu(1e10, 64 * kMiB)};
  problem_.machine.devices[0].set_matmul_flops(1e13);  // steps take the time of reading the weights
  const int64_t whole = Whole(0);
  std::vector<ServingChoice> choices = Place();
  ASSERT_FALSE(choices.empty());
  const double resident = choices[0].llm_seconds;
  problem_.models[0].resident_weight_bytes = 64;
  const absl::Status status = PlaceServing(problem_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string text(status.message());
  ASSERT_THAT(text, HasSubstr("a double buffer, take"));
  problem_.models[0].resident_weight_bytes = std::stoll(text.substr(text.rfind(' ') + 1));
  const int64_t streaming = Whole(0);
  EXPECT_LT(streaming, whole - kMiB);
  problem_.machine.devices[0].set_memory_bytes(streaming);
  choices = Place();
  ASSERT_FALSE(choices.empty());
  EXPECT_GT(choices[0].llm_seconds, resident);
  // Every step reads and writes the streamed weights.
  EXPECT_GE(choices[0].llm_seconds, 2.0 * static_cast<double>(whole - streaming) / 1e10);
}

TEST_F(PlaceServingTest, UsesPipelineStagesWhenMemoryRequires) {
  problem_.models.pop_back();
  problem_.machine.devices = {Cpu(1e10, 0), Cpu(1e10, 0), Cpu(1e10, 0), Cpu(1e10, 0)};
  problem_.machine.link.set_latency_seconds(1);
  const auto need = [&](const ServingDegrees& degrees, const std::vector<int>& devices) {
    const auto placed = PredictPlacement(problem_, problem_.models[0], degrees, devices);
    EXPECT_TRUE(placed.ok()) << placed.status();
    return *std::max_element(placed->bytes.begin(), placed->bytes.end());
  };
  const int64_t whole = need({1, 1}, {0}), half = need({1, 2}, {0, 1});
  ASSERT_LT(half, whole);
  for (v1::Device& device : problem_.machine.devices) device.set_memory_bytes(whole - 1);
  const std::vector<ServingChoice> choices = Place();
  ASSERT_FALSE(choices.empty());
  EXPECT_EQ(choices[0].models[0].degrees.pipeline_parallel, 2);
  EXPECT_EQ(choices[0].models[0].degrees.tensor_parallel, 1);
  // The otherwise best choice is listed with the memory that it lacks.
  bool shown = false;
  for (const ServingChoice& choice : choices) {
    shown |= !choice.refused.empty() && choice.models[0].degrees.ranks() == 1;
  }
  EXPECT_TRUE(shown);
}

TEST_F(PlaceServingTest, ReportsBytesAndRemedyIfNothingFits) {
  problem_.machine.devices = {Cpu(1e10, kMiB), Cpu(1e10, kMiB)};
  const absl::Status status = PlaceServing(problem_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"model 'llm'", "MiB", "2 idle workers", "start workers"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  // The LLM fits, the SSM does not.
  problem_.machine.devices = {Cpu(1e10, Whole(0) + 4096)};
  EXPECT_THAT(std::string(PlaceServing(problem_).status().message()), HasSubstr("'ssm'"));
  problem_.machine.devices.clear();
  EXPECT_EQ(PlaceServing(problem_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
