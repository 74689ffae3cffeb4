// Whatever the plan, the ranks hand out the tensors that one device computes, and reading them
// changes no bit of the training.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/lowering/lower_training.h"
#include "planner/lowering/probe_points.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"
#include "planner/search/search_space.h"
#include "worker/executor/executor.h"
#include "worker/plan_fixture.h"

namespace espalier {
namespace {

constexpr int kSteps = 3;

struct Answers {
  std::map<std::string, std::vector<float>> tensors;  // of the last step, by probe
  std::vector<std::string> refused;
  std::vector<double> loss;
};

// A tensor that is put together from what the ranks read.
struct Gathered {
  std::vector<char> bytes;
  std::vector<bool> filled;
  DType dtype = DType::kInvalid;

  // `addend`: elements add up.
  void Add(const TensorView& part, bool addend) {
    dtype = part.spec.dtype;
    const size_t element = SizeOf(dtype);
    const auto whole = static_cast<size_t>(NumElements(part.spec.global));
    bytes.resize(whole * element);
    filled.resize(whole);
    Dims at(part.spec.dims.size(), 0);
    for (int64_t i = 0; i < part.spec.num_elements(); ++i) {
      size_t index = 0;
      for (size_t d = 0; d < at.size(); ++d) {
        index = index * static_cast<size_t>(part.spec.global[d]) +
                static_cast<size_t>(part.spec.offset[d] + at[d]);
      }
      const char* from = static_cast<const char*>(part.data) + static_cast<size_t>(i) * element;
      if (addend) {
        ASSERT_EQ(dtype, DType::kF32);
        float sum = 0, more = 0;
        memcpy(&sum, &bytes[index * element], element);
        memcpy(&more, from, element);
        sum += more;
        memcpy(&bytes[index * element], &sum, element);
      } else {
        ASSERT_FALSE(filled[index]) << "element " << index << " is read twice";
        memcpy(&bytes[index * element], from, element);
      }
      filled[index] = true;
      for (size_t d = at.size(); d-- > 0 && ++at[d] == part.spec.dims[d];) at[d] = 0;
    }
  }
  std::vector<float> Floats() const {
    std::vector<float> values;
    for (size_t i = 0; i < filled.size(); ++i) {
      EXPECT_TRUE(filled[i]) << "element " << i << " is not read";
      float value = 0;
      if (dtype == DType::kF32) memcpy(&value, &bytes[i * 4], 4);
      int32_t integer = 0;
      if (dtype == DType::kI32) memcpy(&integer, &bytes[i * 4], 4);
      values.push_back(dtype == DType::kI32 ? static_cast<float>(integer) : value);
    }
    return values;
  }
};

// All probes of these programs, by name.
std::map<std::string, ProbePoints::Places> AllProbes(const ProbePoints& points, Answers* answers) {
  std::map<std::string, ProbePoints::Places> probes;
  const auto add = [&](const std::string& name, absl::StatusOr<ProbePoints::Places> places) {
    if (absl::IsFailedPrecondition(places.status())) {
      answers->refused.push_back(name);
      return;
    }
    EXPECT_TRUE(places.ok()) << name << ": " << places.status();
    if (places.ok()) probes[name] = *std::move(places);
  };
  for (const std::string& name : points.values()) {
    add(absl::StrCat("value ", name), points.Value(name));
  }
  for (const std::string& name : points.gradients()) {
    add(absl::StrCat("grad ", name), points.Gradient(name));
  }
  for (const std::string& name : points.columns()) {
    add(absl::StrCat("batch ", name), points.Batch(name));
  }
  for (const std::string& name : points.parameters()) {
    add(absl::StrCat("param ", name), points.Parameter(name));
    for (const std::string& slot : points.states(name)) {
      add(absl::StrCat("state ", name, ".", slot), points.State(name, slot));
    }
  }
  return probes;
}

Answers RunProbed(const Graph& graph, const std::vector<v1::Program>& programs, bool reads) {
  Answers answers;
  const ProbePoints points(graph, programs);
  const std::map<std::string, ProbePoints::Places> probes = AllProbes(points, &answers);
  const int world = static_cast<int>(programs.size());
  std::vector<std::vector<double>> losses(world, std::vector<double>(kSteps));
  absl::Mutex mutex;
  std::map<std::string, Gathered> gathered;
  OnRanks(programs, [&](int rank, Executor& executor) -> absl::Status {
    for (int step = 0; step < kSteps; ++step) {
      std::vector<BufferRead> at;
      std::vector<std::string> names;
      std::vector<bool> addends;
      for (const auto& [name, places] : probes) {
        for (const v1::ProbePoint& point : places[rank].points()) {
          if (point.instructions() > 0) {
            at.push_back({point.instructions(), point.buffer()});
            names.push_back(name);
            addends.push_back(places[rank].adds_up());
          } else if (reads && step == kSteps - 1) {
            const TensorSpec& spec = executor.spec(point.buffer());
            std::vector<char> bytes(static_cast<size_t>(spec.bytes()));
            absl::Status s = executor.ReadBuffer(point.buffer(), bytes.data(), spec.bytes());
            if (!s.ok()) return s;
            absl::MutexLock lock(&mutex);
            gathered[name].Add({bytes.data(), spec}, places[rank].adds_up());
          }
        }
      }
      if (reads && step == kSteps - 1) {
        absl::Status s =
            executor.ReadDuringSteps(std::move(at), [&](int read, const TensorView& values) {
              absl::MutexLock lock(&mutex);
              gathered[names[read]].Add(values, addends[read]);
              return absl::OkStatus();
            });
        if (!s.ok()) return s;
      }
      auto result = executor.Step(step);
      if (!result.ok()) return result.status();
      if (result->values.count("loss")) losses[rank][step] = result->values.at("loss");
    }
    return absl::OkStatus();
  });
  answers.loss = losses[0];
  for (int rank = 1; rank < world; ++rank) {
    for (int step = 0; step < kSteps; ++step) answers.loss[step] += losses[rank][step];
  }
  for (const auto& [name, tensor] : gathered) answers.tensors[name] = tensor.Floats();
  return answers;
}

double Largest(const std::vector<float>& values) {
  double largest = 1e-6;
  for (const float v : values) largest = std::max(largest, std::abs(static_cast<double>(v)));
  return largest;
}

void ExpectSameTensors(const Answers& expected, const Answers& found, const std::string& what) {
  for (const auto& [name, values] : found.tensors) {
    const auto same = expected.tensors.find(name);
    ASSERT_TRUE(same != expected.tensors.end()) << what << ": " << name;
    ASSERT_EQ(values.size(), same->second.size()) << what << ": " << name;
    const double scale = Largest(same->second);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], same->second[i], 2e-4 * scale)
          << what << ": " << name << "[" << i << "]";
    }
  }
}

struct Case {
  const char* name;
  Graph (*graph)();
  std::string optimizer;
};

class PlanProbesTest : public testing::TestWithParam<Case> {};

std::vector<v1::Program> Lowered(const Graph& graph, const PlanProblem& problem,
                                 const v1::SearchOptions& search, const std::string& optimizer,
                                 int64_t memory = 0) {
  auto plan = MakePlan(problem, search);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  if (memory > 0) plan->mutable_devices(0)->set_memory_bytes(memory);
  auto lowered = LowerPlan(Registry(), graph, *plan, Options(optimizer));
  if (memory > 0 && absl::IsResourceExhausted(lowered.status())) return {};
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered.ok() ? lowered->training : std::vector<v1::Program>();
}

v1::SearchOptions Strategy(v1::SearchOptions::Strategy strategy) {
  v1::SearchOptions search;
  search.set_strategy(strategy);
  return search;
}

Answers OneDevice(const Case& test, const Graph& graph) {
  return RunProbed(
      graph,
      Lowered(graph, Problem(graph, 1), Strategy(v1::SearchOptions::SINGLE_DEVICE), test.optimizer),
      true);
}

TEST_P(PlanProbesTest, RandomPlacementsHandOutTheSingleDevicesTensors) {
  const Graph graph = GetParam().graph();
  const Answers single = OneDevice(GetParam(), graph);
  EXPECT_TRUE(single.refused.empty()) << single.refused[0];
  EXPECT_GT(single.tensors.size(), 10u);
  Random random(11);
  size_t refused = 0, answered = 0;
  for (int round = 0; round < 12; ++round) {
    const int stage = round % 4;  // ZeRO
    auto structure = BuildStructure(Registry(), graph, /*forward_only=*/false, stage);
    ASSERT_TRUE(structure.ok()) << structure.status();
    const SearchSpace space(*structure, {.num_devices = 3});
    ConfigTable table(*structure);
    Placement placement(structure->nodes.size(), nullptr);
    for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, space.Draw(n, &random));
    std::vector<int64_t> kept;
    auto programs =
        LowerPlacement(*structure, placement, table, 3, Options(GetParam().optimizer), &kept);
    ASSERT_TRUE(programs.ok()) << programs.status();
    for (v1::Program& program : *programs) program.set_seed(3);
    const std::string what = absl::StrCat("placement ", round, " at stage ", stage);
    const Answers probed = RunProbed(graph, *programs, true);
    ExpectSameTensors(single, probed, what);
    EXPECT_EQ(RunProbed(graph, *programs, false).loss, probed.loss) << what;
    refused += probed.refused.size();
    answered += probed.tensors.size();
  }
  // Only addends that no operator reads as a whole, such as the loss's gradient, and halos.
  EXPECT_LT(refused, answered / 8) << answered;
}

TEST_P(PlanProbesTest, PipelinesSwapsAndTilesHandOutTheSingleDevicesTensors) {
  const Graph graph = GetParam().graph();
  const Answers single = OneDevice(GetParam(), graph);
  v1::SearchOptions pipeline = Strategy(v1::SearchOptions::SEARCH);
  pipeline.set_pipeline_stages(2);
  pipeline.set_micro_batches(4);
  const bool statistics = std::any_of(graph.nodes().begin(), graph.nodes().end(),
                                      [](const Node& node) { return node.op == "batch_norm"; });
  if (!statistics) {  // it has no micro-batches
    const std::vector<v1::Program> programs =
        Lowered(graph, Problem(graph, 2), pipeline, GetParam().optimizer);
    const Answers probed = RunProbed(graph, programs, true);
    ExpectSameTensors(single, probed, "pipeline");
    EXPECT_EQ(RunProbed(graph, programs, false).loss, probed.loss);
    EXPECT_LT(probed.refused.size(), probed.tensors.size() / 4) << probed.refused.front();
  }
  const PlanProblem problem = Problem(graph, 1);
  const v1::SearchOptions one = Strategy(v1::SearchOptions::SINGLE_DEVICE);
  const std::vector<v1::Program> ample = Lowered(graph, problem, one, GetParam().optimizer);
  int64_t stays = 0;
  for (const v1::Buffer& buffer : ample[0].buffers()) {
    if (buffer.kind() == v1::SCRATCH) continue;
    int64_t bytes = 4;
    for (int64_t dim : buffer.spec().dims()) bytes *= dim;
    stays = std::max(stays, buffer.offset_bytes() + bytes);
  }
  const int64_t memory = stays + (ample[0].arena_bytes() - stays) * 2 / 3;
  const std::vector<v1::Program> little =
      Lowered(graph, problem, one, GetParam().optimizer, memory);
  if (little.empty()) return;  // too small to swap
  EXPECT_GT(little[0].instructions_size(), ample[0].instructions_size());
  const Answers probed = RunProbed(graph, little, true);
  ExpectSameTensors(single, probed, "little memory");
  EXPECT_EQ(RunProbed(graph, little, false).loss, probed.loss);
  for (const auto& [name, values] : single.tensors) {
    EXPECT_TRUE(probed.tensors.contains(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlanProbesTest,
                         testing::Values(Case{"mlp", Mlp, "adam"}, Case{"cnn", Cnn, "sgd"},
                                         Case{"wide_mlp", WideMlp, "sgd"},
                                         Case{"llama", Llama, "adamw"},
                                         Case{"wide_llama", WideLlama, "sgd"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace espalier
