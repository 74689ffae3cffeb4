// Every family's logits and hidden states are those of Hugging Face's transformers, through the
// whole path: folder, config.json, weights by name, graph, lowering, executor, runner.
// families.json and hidden_states.json hold the cases; make_family_golden.py makes them and says
// how weights are drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "ops/models/model.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "tests/conformance/family_model.h"
#include "worker/runner/program_model_runner.h"
#include "worker/weights/weight_files.h"

namespace espalier {
namespace {

using nlohmann::json;

std::vector<FamilyCase> Cases() { return ReadFamilyCases("tests/conformance/families.json"); }

class FamilyLogitsTest : public ::testing::TestWithParam<FamilyCase> {
 protected:
  void SetUp() override {
    const FamilyCase& c = GetParam();
    RegisterAllOperators(registry_);
    folder_ = JoinPath(::testing::TempDir(), c.name());
    const absl::Status written = WriteFamilyFolder(*files_, folder_, c);
    ASSERT_TRUE(written.ok()) << written;
    tokens_ = c["tokens"].get<std::vector<int32_t>>();
    expected_ = DecodeFloats(c["logits"].get<std::string>());
  }

  // A folder that holds the case "llama" as a GGUF file and nothing else.
  void UseGguf() {
    folder_ += "-gguf";
    ASSERT_TRUE(files_->CreateDirectories(folder_).ok());
    std::ifstream file("tests/conformance/llama.gguf", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ASSERT_TRUE(WriteFileAtomically(*files_, JoinPath(folder_, "llama.gguf"), bytes).ok());
  }

  std::unique_ptr<ProgramModelRunner> Runner() {
    absl::StatusOr<std::string> config = ReadModelConfig(*files_, folder_);
    EXPECT_TRUE(config.ok()) << config.status();
    absl::StatusOr<LanguageModel> model = ReadModel(*config);
    if (!model.ok()) {
      ADD_FAILURE() << model.status();
      return nullptr;
    }
    vocabulary_ = model->facts.vocab_size;
    ServingShape shape{.max_rows = 32,
                       .max_output_rows = 32,
                       .kv_slots = kSequenceSlots,
                       .max_sequences = 2,
                       .max_context_slots = 64,
                       .max_ancestor_slots = 256,
                       .max_positions = GetParam()["max_positions"].get<int>()};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) {
      ADD_FAILURE() << serving.status();
      return nullptr;
    }
    const absl::Status bound = BindAndInfer(registry_, 1, &serving->graph);
    EXPECT_TRUE(bound.ok()) << bound;
    absl::StatusOr<proto::Program> program = LowerServing(registry_, serving->graph);
    EXPECT_TRUE(program.ok()) << program.status();
    devices_.push_back(NewCpuDevice({2, 1 << 26}));
    auto runner =
        ProgramModelRunner::Create(*program, folder_, static_cast<int>(model->facts.max_positions),
                                   devices_.back().get(), serving->weights);
    if (!runner.ok()) {
      ADD_FAILURE() << runner.status();
      return nullptr;
    }
    return *std::move(runner);
  }

  // Rows [begin, end) of the sequence itself.
  RunnerBatch Rows(int begin, int end) const {
    RunnerBatch batch;
    AddSequence(&batch, tokens_, begin, end);
    return batch;
  }

  RunnerLogits Step(ProgramModelRunner& runner, const RunnerBatch& batch) {
    RunnerLogits logits;
    const absl::Status status = runner.Step(batch, &logits);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }

  void ExpectSameBits(const RunnerLogits& a, int row_a, const RunnerLogits& b, int row_b) {
    EXPECT_EQ(std::memcmp(a.row(row_a), b.row(row_b), vocabulary_ * sizeof(float)), 0)
        << "position " << row_a;
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::vector<std::unique_ptr<Device>> devices_;
  std::string folder_;
  std::vector<int32_t> tokens_;
  std::vector<float> expected_;
  int64_t vocabulary_ = 0;
};

TEST_P(FamilyLogitsTest, AreThoseOfTransformers) {
  const int n = static_cast<int>(tokens_.size());
  auto runner = Runner();
  ASSERT_NE(runner, nullptr);
  const RunnerLogits all = Step(*runner, Rows(0, n));
  ASSERT_EQ(all.values.size(), expected_.size());
  float worst = 0;
  for (size_t i = 0; i < expected_.size(); ++i) {
    ASSERT_TRUE(std::isfinite(all.values[i]));
    worst = std::max(worst, std::fabs(all.values[i] - expected_[i]));
  }
  EXPECT_LE(worst, 1e-4f);
  RecordProperty("largest_error", std::to_string(worst));

  if (GetParam().name() == "llama") {
    UseGguf();
    auto gguf = Runner();
    ASSERT_NE(gguf, nullptr);
    EXPECT_EQ(Step(*gguf, Rows(0, n)).values, all.values);
  }

  // Decoding token by token: the same bits.
  auto stepwise = Runner();
  ASSERT_NE(stepwise, nullptr);
  for (int i = 0; i < n; ++i) {
    const RunnerLogits one = Step(*stepwise, Rows(i, i + 1));
    ExpectSameBits(all, i, one, 0);
  }

  // The second half as a path through a tree that has another branch at each node.
  auto tree = Runner();
  ASSERT_NE(tree, nullptr);
  const int prefix = n / 2;
  Step(*tree, Rows(0, prefix));
  RunnerBatch batch;
  std::vector<int32_t> path;
  std::vector<int> row_of;
  for (int i = prefix; i < n; ++i) {
    std::vector<int32_t> other = path;
    other.push_back((SlotOf(i) + 48) % kSequenceSlots);
    AddRow(&batch, (tokens_[i] + 1) % static_cast<int32_t>(vocabulary_), i, other.back(), 0, prefix,
           other);
    path.push_back(SlotOf(i));
    row_of.push_back(batch.rows());
    AddRow(&batch, tokens_[i], i, SlotOf(i), 0, prefix, path);
  }
  batch.sequence_start = {0, prefix};
  for (int i = 0; i < prefix; ++i) batch.sequence_slots.push_back(SlotOf(i));
  const RunnerLogits branches = Step(*tree, batch);
  for (int i = prefix; i < n; ++i) ExpectSameBits(all, i, branches, row_of[i - prefix]);
}

// What embeddings are made of.
TEST_P(FamilyLogitsTest, HiddenStatesAreTransformersLastOnes) {
  std::ifstream file("tests/conformance/hidden_states.json");
  const json states = json::parse(file);
  const std::vector<float> expected = DecodeFloats(states.at(GetParam().name()).get<std::string>());
  auto runner = Runner();
  ASSERT_NE(runner, nullptr);
  ASSERT_EQ(runner->limits().hidden, static_cast<int>(expected.size()));
  const int n = static_cast<int>(tokens_.size());
  RunnerBatch batch = Rows(0, n);
  batch.logit_rows = {3, n - 1};
  batch.wants_hidden = true;
  const RunnerLogits both = Step(*runner, batch);
  ASSERT_EQ(both.hidden.size(), 2 * expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(both.hidden[expected.size() + i], expected[i], 1e-4f) << i;
  }
  // Nobody pays for them who does not ask.
  EXPECT_TRUE(Step(*runner, Rows(0, n)).hidden.empty());
}

INSTANTIATE_TEST_SUITE_P(All, FamilyLogitsTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<FamilyCase>& info) {
                           return info.param.name();
                         });

}  // namespace
}  // namespace espalier
