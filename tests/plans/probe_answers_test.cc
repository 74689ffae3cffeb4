// The answers to probes are the same whatever the plan: found in its programs, read and reduced by
// its ranks, and put together.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/lowering/lower_training.h"
#include "planner/pcg/structure.h"
#include "planner/search/search_space.h"
#include "server/replay/probe_set.h"
#include "server/replay/step_answers.h"
#include "worker/executor/executor.h"
#include "worker/plan_fixture.h"
#include "worker/trainer/probe_reader.h"

namespace espalier {
namespace {

constexpr int kSteps = 3;

// "histogram(64) of grad(w)" -> numbers.
using Answers = std::map<std::string, std::vector<double>>;

std::vector<double> NumbersOf(const v1::ProbeValue& value) {
  switch (value.kind_case()) {
    case v1::ProbeValue::kScalar:
      return {value.scalar()};
    case v1::ProbeValue::kHistogram: {
      std::vector<double> numbers(value.histogram().counts().begin(),
                                  value.histogram().counts().end());
      numbers.push_back(static_cast<double>(value.histogram().outside()));
      return numbers;
    }
    case v1::ProbeValue::kElements:
      return {value.elements().values().begin(), value.elements().values().end()};
    case v1::ProbeValue::kTensor: {
      const std::string& data = value.tensor().data();
      std::vector<double> numbers;
      for (size_t i = 0; i + 4 <= data.size() && value.tensor().dtype() == v1::F32; i += 4) {
        float element = 0;
        memcpy(&element, &data[i], 4);
        numbers.push_back(element);
      }
      for (size_t i = 0; i + 8 <= data.size() && value.tensor().dtype() == v1::I64; i += 8) {
        int64_t element = 0;
        memcpy(&element, &data[i], 8);
        numbers.push_back(static_cast<double>(element));
      }
      return numbers;
    }
    case v1::ProbeValue::KIND_NOT_SET:
      break;
  }
  return {};
}

// Of the last of kSteps steps, on one rank per program.
Answers Ask(const Graph& graph, const std::vector<v1::Program>& programs,
            const std::vector<std::string>& log) {
  Answers answers;
  const ProbePoints points(graph, programs);
  const auto parsed = ParseProbes(log);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return answers;
  auto found = FindProbes(*parsed, points, programs.size());
  EXPECT_TRUE(found.ok()) << found.status();
  if (!found.ok()) return answers;
  EXPECT_TRUE(found->lacking.empty()) << found->lacking[0].first << found->lacking[0].second;
  StepAnswers together(&*found);
  absl::Mutex mutex;
  OnRanks(programs, [&](int rank, Executor& executor) -> absl::Status {
    ProbeReader::Probes probes;
    probes.Assign(found->by_rank[rank].begin(), found->by_rank[rank].end());
    auto reader = ProbeReader::Create(&executor, probes);
    if (!reader.ok()) return reader.status();
    for (int step = 0; step < kSteps; ++step) {
      const bool reads = step == kSteps - 1;
      absl::Status s = reads ? (*reader)->BeginStep() : absl::OkStatus();
      if (!s.ok()) return s;
      auto result = executor.Step(step);
      if (!result.ok()) return result.status();
      if (!reads) continue;
      auto results = (*reader)->EndStep();
      if (!results.ok()) return results.status();
      absl::MutexLock lock(&mutex);
      v1::ProbeResults message;
      message.set_step(step);
      for (v1::RankProbeResult& one : *results) *message.add_results() = std::move(one);
      auto rows = together.Add(static_cast<size_t>(rank), message);
      if (!rows.ok()) return rows.status();
      for (const v1::HistoryRow& row : *rows) {
        EXPECT_EQ(row.step(), kSteps - 1);
        answers[absl::StrCat(row.reduction(), " of ", row.name())] = NumbersOf(row.value());
      }
    }
    return absl::OkStatus();
  });
  return answers;
}

const std::vector<std::string>& Log() {
  static const auto* log = new std::vector<std::string>{
      "norm(grad(*))",
      "mean(update(*))",
      "std(param(fc1.weight))",
      "max(state(*, *))",
      "min(state(fc2.weight, adam_v))",
      "histogram(fc1, 8, -1, 1)",
      "histogram(fc2, 5)",
      "quantiles(fc1, 0.1, 0.5, 0.9)",
      "sample(act, 5)",
      "top_k(grad(fc2.weight), 3)",
      "count_nan(drop)",
      "grad(fc1)",
      "update(fc1.bias)",
      "batch(x)",
      "confusion(fc2, batch(labels))",
      "loss",
      "mean(accuracy)",
  };
  return *log;
}

std::vector<v1::Program> OneDevice(const Graph& graph, const LoweringOptions& options) {
  v1::SearchOptions search;
  search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  auto plan = MakePlan(Problem(graph, 1), search);
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto lowered = LowerPlan(Registry(), graph, *plan, options);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered->training;
}

void ExpectSameAnswers(const Answers& expected, const Answers& found, const std::string& what) {
  EXPECT_EQ(expected.size(), found.size()) << what;
  for (const auto& [name, numbers] : found) {
    const auto same = expected.find(name);
    ASSERT_TRUE(same != expected.end()) << what << ": " << name;
    ASSERT_EQ(numbers.size(), same->second.size()) << what << ": " << name;
    double scale = 1e-7;
    for (const double number : same->second) scale = std::max(scale, std::abs(number));
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_NEAR(numbers[i], same->second[i], 3e-4 * scale) << what << ": " << name << " " << i;
    }
  }
}

TEST(ProbeAnswers, AreTheSameForRandomPlacementsAndZeroStages) {
  const Graph graph = MlpOf(96, 768);
  const LoweringOptions options = Options("adam");
  const Answers single = Ask(graph, OneDevice(graph, options), Log());
  EXPECT_GT(single.size(), 20u);
  for (const auto& [name, numbers] : single) EXPECT_FALSE(numbers.empty()) << name;
  EXPECT_EQ(single.at("full of batch(x)").size(), 8u * 96);
  double counted = 0;
  for (const double count : single.at("confusion of fc2, batch(labels)")) counted += count;
  EXPECT_EQ(counted, 8);
  Random random(17);
  for (int round = 0; round < 16; ++round) {
    auto structure = BuildStructure(Registry(), graph, /*forward_only=*/false, round % 4);
    ASSERT_TRUE(structure.ok()) << structure.status();
    const SearchSpace space(*structure, {.num_devices = 3});
    ConfigTable table(*structure);
    Placement placement(structure->nodes.size(), nullptr);
    for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, space.Draw(n, &random));
    std::vector<int64_t> kept;
    auto programs = LowerPlacement(*structure, placement, table, 3, options, &kept);
    ASSERT_TRUE(programs.ok()) << programs.status();
    for (v1::Program& program : *programs) program.set_seed(3);
    ExpectSameAnswers(single, Ask(graph, *programs, Log()), absl::StrCat("placement ", round));
  }
}

TEST(ProbeAnswers, GradientsHaveNoLossScale) {
  const Graph graph = Mlp();
  LoweringOptions scaled = Options("adam");
  scaled.optimizer.mutable_loss_scale()->set_initial(1024);
  scaled.optimizer.mutable_loss_scale()->set_growth_interval(1);
  const std::vector<std::string> log = {"grad(fc1.weight)", "norm(grad(act))", "norm(grad(*))"};
  ExpectSameAnswers(Ask(graph, OneDevice(graph, Options("adam")), log),
                    Ask(graph, OneDevice(graph, scaled), log), "loss scale");
}

TEST(ProbeAnswers, ANameThatTheProgramsLackIsListed) {
  const Graph graph = Mlp();
  const std::vector<v1::Program> programs = OneDevice(graph, Options("adam"));
  const ProbePoints points(graph, programs);
  const auto probes =
      ParseProbes({"norm(grad(fc9.weight))", "relu_*", "state(fc1.weight, adam_x)", "mean(fc1)"});
  ASSERT_TRUE(probes.ok()) << probes.status();
  const auto found = FindProbes(*probes, points, 1);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->lacking.size(), 3u);
  EXPECT_EQ(found->probes.size(), 1u);
  EXPECT_NE(found->lacking[2].second.message().find("adam_m"), std::string::npos)
      << found->lacking[2].second;
}

TEST(ProbeAnswers, AConfusionOfWhatIsNoLabelIsRefusedBeforeAnyStep) {
  const Graph graph = Mlp();
  const std::vector<v1::Program> programs = OneDevice(graph, Options("adam"));
  for (const std::string probe : {"confusion(fc2, fc1)", "confusion(batch(labels), fc2)"}) {
    const auto found = FindProbes({*ParseProbe(probe)}, ProbePoints(graph, programs), 1);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << found.status();
    EXPECT_EQ(found.status().message().find(absl::StrCat("'", probe, "': confusion: l")), 0u)
        << found.status();
  }
}

}  // namespace
}  // namespace espalier
