// What a checkpoint answers is what the ranks answer that train on from it, to the bit.
#include "server/replay/checkpoint_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "planner/lowering/checkpoint_sharding.h"
#include "planner/lowering/lower_training.h"
#include "planner/pcg/structure.h"
#include "planner/search/search_space.h"
#include "server/replay/probe_set.h"
#include "server/replay/step_answers.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/manifest.h"
#include "worker/executor/executor.h"
#include "worker/plan_fixture.h"
#include "worker/trainer/probe_reader.h"
#include "worker/trainer/shard_writer.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kStepsDone = 3;

std::vector<ProbeExpression> Parsed(const std::vector<std::string>& log) {
  auto probes = ParseProbes(log);
  EXPECT_TRUE(probes.ok()) << probes.status();
  return *probes;
}

const std::vector<std::string>& StateLog() {
  static const auto* log = new std::vector<std::string>{
      "norm(param(*))",
      "std(param(fc1.weight))",
      "mean(state(*, *))",
      "min(state(fc2.weight, adam_v))",
      "max(param(fc1.weight))",
      "count_nan(param(fc1.weight))",
      "histogram(param(fc1.weight), 8, -1, 1)",
      "histogram(param(fc2.weight), 5)",
      "quantiles(param(fc1.weight), 0.1, 0.5, 0.9)",
      "sample(state(fc1.weight, adam_m), 5)",
      "top_k(param(fc1.weight), 3)",
      "param(fc1.bias)",
      "state(fc1.weight, adam_m)",
  };
  return *log;
}

// A row by name and reduction.
std::map<std::string, std::string> Bytes(const std::vector<v1::HistoryRow>& rows) {
  std::map<std::string, std::string> bytes;
  for (const v1::HistoryRow& row : rows) {
    bytes[absl::StrCat(row.reduction(), " of ", row.name())] = row.SerializeAsString();
  }
  return bytes;
}

class CheckpointAnswersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/answers-",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    store_ = std::make_unique<FolderCheckpointStore>(*files_, folder_);
  }

  // Writes a checkpoint of kStepsDone steps, or of none. Returns what the ranks answer in the step
  // that follows it.
  std::vector<v1::HistoryRow> Train(const std::vector<v1::Program>& programs,
                                    const FoundProbes& found, int64_t steps = kStepsDone) {
    std::vector<v1::HistoryRow> rows;
    Manifest manifest;
    manifest.job_id = "job";
    manifest.steps_done = steps;
    manifest.files.resize(programs.size());
    StepAnswers together(&found);
    absl::Mutex mutex;
    OnRanks(programs, [&](int rank, Executor& executor) -> absl::Status {
      ProbeReader::Probes probes;
      probes.Assign(found.by_rank[rank].begin(), found.by_rank[rank].end());
      auto reader = ProbeReader::Create(&executor, probes);
      if (!reader.ok()) return reader.status();
      for (int64_t step = 0; step < steps; ++step) {
        auto result = executor.Step(step);
        if (!result.ok()) return result.status();
      }
      auto shard = WriteShardOf(*store_, executor, "job/checkpoint", steps);
      if (!shard.ok()) return shard.status();
      if (absl::Status s = (*reader)->BeginStep(); !s.ok()) return s;
      auto result = executor.Step(steps);
      if (!result.ok()) return result.status();
      auto results = (*reader)->EndStep();
      if (!results.ok()) return results.status();
      absl::MutexLock lock(&mutex);
      manifest.files[rank] = {shard->file(), shard->sha256(), shard->bytes()};
      v1::ProbeResults message;
      message.set_step(steps);
      for (v1::RankProbeResult& one : *results) *message.add_results() = std::move(one);
      auto added = together.Add(static_cast<size_t>(rank), message);
      if (!added.ok()) return added.status();
      if (!added->empty()) rows = *std::move(added);
      return absl::OkStatus();
    });
    EXPECT_EQ(WriteManifest(*store_, "job/checkpoint", manifest), absl::OkStatus());
    return rows;
  }

  std::vector<v1::HistoryRow> ReadAll(const CheckpointAnswers& answers) {
    auto rows = answers.Read(*store_, "job/checkpoint", kStepsDone);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *rows : std::vector<v1::HistoryRow>();
  }

  std::unique_ptr<CheckpointTensors> Tensors() {
    auto tensors = CheckpointTensors::Open(*store_, "job/checkpoint", kStepsDone);
    EXPECT_TRUE(tensors.ok()) << tensors.status();
    return *std::move(tensors);
  }

  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::string folder_;
  std::unique_ptr<FolderCheckpointStore> store_;
};

std::vector<v1::Program> OneRank(const Graph& graph, const LoweringOptions& options) {
  v1::SearchOptions search;
  search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  auto plan = MakePlan(Problem(graph, 1), search);
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto lowered = LowerPlan(Registry(), graph, *plan, options);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered->training;
}

FoundProbes Find(const Graph& graph, const std::vector<v1::Program>& programs,
                 const std::vector<std::string>& log) {
  auto found = FindProbes(Parsed(log), ProbePoints(graph, programs), programs.size());
  EXPECT_TRUE(found.ok()) << found.status();
  return *std::move(found);
}

TEST_F(CheckpointAnswersTest, AreThoseOfOneRankThatTrainsOn) {
  const Graph graph = MlpOf(96, 768);
  const std::vector<v1::Program> programs = OneRank(graph, Options("adam"));
  std::vector<std::string> log = StateLog();
  const FoundProbes found = Find(graph, programs, log);
  const auto trained = Bytes(Train(programs, found));
  EXPECT_GT(trained.size(), 15u);
  const auto answers = CheckpointAnswers::Make(*Tensors(), Parsed(log));
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_TRUE(answers->lacking().empty());
  EXPECT_EQ(answers->size(), trained.size());
  EXPECT_EQ(Bytes(ReadAll(*answers)), trained);
}

TEST_F(CheckpointAnswersTest, AreThoseOfRanksThatTrainOnWithTheirPlan) {
  const Graph graph = MlpOf(96, 768);
  const LoweringOptions options = Options("adam");
  Random random(23);
  int sharded = 0;
  for (int round = 0; round < 8; ++round) {
    auto structure = BuildStructure(Registry(), graph, /*forward_only=*/false, round % 4);
    ASSERT_TRUE(structure.ok()) << structure.status();
    const SearchSpace space(*structure, {.num_devices = 3});
    ConfigTable table(*structure);
    Placement placement(structure->nodes.size(), nullptr);
    for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, space.Draw(n, &random));
    std::vector<int64_t> kept;
    auto programs = LowerPlacement(*structure, placement, table, 3, options, &kept);
    ASSERT_TRUE(programs.ok()) << programs.status();
    ShardCheckpoints(&*programs);
    for (v1::Program& program : *programs) program.set_seed(3);
    std::vector<std::string> log = StateLog();
    log.insert(log.begin() + 1, "norm(grad(*))");  // left to the ranks
    const FoundProbes found = Find(graph, *programs, log);
    auto trained = Bytes(Train(*programs, found));
    std::erase_if(trained,
                  [](const auto& row) { return row.first.find("grad(") != std::string::npos; });
    const CheckpointAnswers answers = CheckpointAnswers::Make(found, *programs);
    EXPECT_EQ(Bytes(ReadAll(answers)), trained) << "placement " << round;
    // However the checkpoint is split, its whole tensors are the same: of a plan for one worker.
    const auto whole = CheckpointAnswers::Make(*Tensors(), Parsed({"param(*)"}));
    ASSERT_TRUE(whole.ok()) << whole.status();
    for (const v1::HistoryRow& row : ReadAll(*whole)) {
      EXPECT_FALSE(row.value().tensor().data().empty()) << row.name();
    }
    for (const auto& of_rank : found.by_rank) {
      for (const v1::RankProbe& probe : of_rank) sharded += probe.points_size() > 0 ? 1 : 0;
    }
    std::filesystem::remove_all(folder_);
  }
  EXPECT_GT(sharded, 200);
}

TEST_F(CheckpointAnswersTest, InitialValuesAreThoseOfTheFirstStep) {
  const Graph graph = Cnn();  // ones, zeros, and random numbers
  const std::vector<v1::Program> programs = OneRank(graph, Options("adam"));
  const FoundProbes found = Find(graph, programs, {"param(*)", "state(*, *)", "norm(param(*))"});
  const auto trained = Bytes(Train(programs, found, /*steps=*/0));
  const std::vector<InitialValue> none;
  InitialTensors initial(programs, none);
  const auto rows = CheckpointAnswers::Make(found, programs).Read(initial, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_GT(rows->size(), 10u);
  EXPECT_EQ(Bytes(*rows), trained);
}

TEST_F(CheckpointAnswersTest, StoredInitialValuesAreWidened) {
  v1::Program program;
  v1::Buffer* buffer = program.add_buffers();
  buffer->set_name("w");
  buffer->set_kind(v1::PARAMETER_SHARD);
  buffer->mutable_spec()->set_dtype(v1::F32);
  buffer->mutable_spec()->add_dims(1);  // a shard of three
  buffer->mutable_spec()->add_offset(1);
  buffer->mutable_spec()->add_global(3);
  buffer->mutable_initializer()->set_kind(v1::Initializer::STORED);
  const uint16_t halves[] = {0x3f80, 0xc000, 0x3f00};  // bf16: 1, -2, 0.5
  const std::vector<InitialValue> stored = {
      {"w",
       {DType::kBF16, {3}},
       ReaderOfBytes(std::string(reinterpret_cast<const char*>(halves), sizeof(halves)))}};
  const std::vector<v1::Program> programs = {program};
  InitialTensors initial(programs, stored);
  const auto answers = CheckpointAnswers::Make(initial, Parsed({"param(w)"}));
  ASSERT_TRUE(answers.ok()) << answers.status();
  const auto rows = answers->Read(initial, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  float elements[3] = {};
  ASSERT_EQ((*rows)[0].value().tensor().data().size(), sizeof(elements));
  std::memcpy(elements, (*rows)[0].value().tensor().data().data(), sizeof(elements));
  EXPECT_THAT(elements, ::testing::ElementsAre(1, -2, 0.5));
}

TEST_F(CheckpointAnswersTest, ADamagedFileIsNamed) {
  const Graph graph = Mlp();
  const std::vector<v1::Program> programs = OneRank(graph, Options("adam"));
  const std::vector<std::string> log = {"norm(param(fc1.weight))"};
  Train(programs, Find(graph, programs, log));
  const auto answers = CheckpointAnswers::Make(*Tensors(), Parsed(log));
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_EQ(ReadAll(*answers).size(), 1u);
  const std::string file = folder_ + "/job/checkpoint/rank-0.safetensors";
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-1, std::ios::end);
    const char last = static_cast<char>(bytes.get());
    bytes.seekp(-1, std::ios::end);
    bytes.put(static_cast<char>(last ^ 1));
  }
  auto rows = answers->Read(*store_, "job/checkpoint", kStepsDone);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(rows.status().message()), HasSubstr("rank-0.safetensors"));
  std::filesystem::resize_file(file, 100);
  rows = answers->Read(*store_, "job/checkpoint", kStepsDone);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(rows.status().message()), HasSubstr("rank-0.safetensors"));
  rows = answers->Read(*store_, "job/checkpoint", kStepsDone + 1);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kDataLoss);
  rows = answers->Read(*store_, "job/another", kStepsDone);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointAnswersTest, NamesThatAreLackingAreListed) {
  const Graph graph = Mlp();
  const std::vector<v1::Program> programs = OneRank(graph, Options("adam"));
  const std::vector<std::string> log = {"param(fc9.weight)", "state(fc1.weight, adam_x)",
                                        "norm(param(conv*))", "mean(param(fc1.weight))",
                                        "norm(state(fc1.*, *_v))"};
  const FoundProbes found = Find(graph, programs, log);
  Train(programs, found);
  const auto answers = CheckpointAnswers::Make(*Tensors(), Parsed(log));
  ASSERT_TRUE(answers.ok()) << answers.status();
  // As in the programs.
  ASSERT_EQ(answers->lacking().size(), 3u);
  for (size_t i = 0; i < answers->lacking().size(); ++i) {
    EXPECT_EQ(answers->lacking()[i].first, found.lacking[i].first);
    EXPECT_EQ(answers->lacking()[i].second, found.lacking[i].second);
  }
  ASSERT_EQ(answers->size(), found.probes.size());
  EXPECT_EQ(ReadAll(*answers)[1].name(), ToString(found.probes[1].probe.targets[0]));
  // What is not in a checkpoint is refused by name.
  const auto refused = CheckpointAnswers::Make(*Tensors(), Parsed({"norm(grad(fc1.weight))"}));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("norm(grad(fc1.weight))"));
}

TEST(AnsweredByCheckpoint, IsSaidOfParametersAndOptimizerState) {
  const std::vector<ProbeExpression> probes =
      Parsed({"param(w)", "norm(state(w, adam_m))", "norm(update(w))", "grad(w)", "batch(x)", "w",
              "confusion(param(w), param(v))", "confusion(logits, batch(labels))"});
  std::vector<bool> answered;
  for (const ProbeExpression& probe : probes) answered.push_back(AnsweredByCheckpoint(probe));
  EXPECT_THAT(answered,
              ::testing::ElementsAre(true, true, false, false, false, false, true, false));
}

}  // namespace
}  // namespace espalier
