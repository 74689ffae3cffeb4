// The serving path whole: graph, lowering, executor, runner, with random weights.
#include <gtest/gtest.h>

#include <cstring>

#include "models/llama.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "storage/safetensors.h"
#include "worker/executor/initialize.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

LlamaConfig Config() {
  LlamaConfig config;
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  return config;
}

v1::Program ServingProgram(const LlamaConfig& config) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  ServingShape shape;
  shape.max_rows = 16;
  shape.max_output_rows = 8;
  shape.kv_slots = 48;
  shape.max_sequences = 4;
  shape.max_context_slots = 64;
  shape.max_ancestor_slots = 32;
  auto graph = BuildLlamaServing(registry, config, shape);
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(BindAndInfer(registry, 1, &*graph).ok());
  auto program = LowerServing(registry, *graph);
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// Rows [begin, end) of a prompt in slots 10, 11, ...
RunnerBatch PromptRows(const std::vector<int32_t>& tokens, int begin, int end,
                       std::vector<int32_t> logit_rows) {
  RunnerBatch batch;
  for (int i = begin; i < end; ++i) {
    batch.tokens.push_back(tokens[i]);
    batch.positions.push_back(i);
    batch.slots.push_back(10 + i);
    batch.row_sequence.push_back(0);
    batch.row_prefix.push_back(i + 1);
  }
  batch.ancestor_start.assign(batch.tokens.size() + 1, 0);
  batch.sequence_start = {0, end};
  for (int i = 0; i < end; ++i) batch.sequence_slots.push_back(10 + i);
  batch.logit_rows = std::move(logit_rows);
  return batch;
}

class RunnerTest : public testing::Test {
 protected:
  std::unique_ptr<ProgramModelRunner> Make(const std::string& folder = "") {
    auto runner = ProgramModelRunner::Create(ServingProgram(Config()), folder, 64, device_.get());
    EXPECT_TRUE(runner.ok()) << runner.status();
    if (folder.empty()) FillRandomly((*runner)->executor());
    return *std::move(runner);
  }
  static void FillRandomly(Executor& executor) {
    v1::Initializer normal;
    normal.set_kind(v1::Initializer::NORMAL);
    normal.set_scale(0.3);
    for (int i = 0; i < executor.num_buffers(); ++i) {
      if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
      std::vector<float> values(static_cast<size_t>(executor.spec(i).num_elements()));
      const TensorSpec& spec = executor.spec(i);
      ASSERT_TRUE(Initialize(normal, executor.buffer(i).name(), 4, spec, values.data()).ok());
      ASSERT_TRUE(executor.WriteBuffer(i, values.data(), spec.bytes()).ok());
    }
  }
  std::unique_ptr<Device> device_ = NewCpuDevice({1, 1 << 26});
  const std::vector<int32_t> prompt_{3, 1, 4, 1, 5, 9, 2, 6};
};

TEST_F(RunnerTest, LimitsComeFromTheProgram) {
  const RunnerLimits limits = Make()->limits();
  EXPECT_EQ(limits.vocabulary, 32);
  EXPECT_EQ(limits.kv_slots, 48);
  EXPECT_EQ(limits.max_rows, 16);
  EXPECT_EQ(limits.max_sequences, 4);
  EXPECT_EQ(limits.max_context_slots, 64);
  EXPECT_EQ(limits.max_ancestor_slots, 32);
  EXPECT_EQ(limits.max_positions, 64);
}

TEST_F(RunnerTest, LogitsDoNotDependOnHowThePromptIsCut) {
  auto whole = Make(), stepwise = Make();
  RunnerOutput all, one, none;
  absl::Status s = whole->Step(PromptRows(prompt_, 0, 8, {5, 6, 7}), &all);
  ASSERT_TRUE(s.ok()) << s;
  ASSERT_EQ(all.values.size(), 3u * 32);
  EXPECT_NE(all.values[0], all.values[1]);
  ASSERT_TRUE(stepwise->Step(PromptRows(prompt_, 0, 5, {}), &none).ok());
  EXPECT_TRUE(none.values.empty());
  for (int row = 5; row < 8; ++row) {
    ASSERT_TRUE(stepwise->Step(PromptRows(prompt_, row, row + 1, {0}), &one).ok());
    EXPECT_EQ(std::memcmp(one.row(0), all.row(row - 5), 32 * sizeof(float)), 0) << row;
  }
}

TEST_F(RunnerTest, TreeNodesSeeTheirAncestorsAlone) {
  auto plain = Make(), tree = Make();
  RunnerOutput expected, found;
  // Two branches below the prompt: 7 -> 8 and 11, in one step.
  ASSERT_TRUE(tree->Step(PromptRows(prompt_, 0, 8, {}), &found).ok());
  RunnerBatch batch;
  batch.tokens = {7, 11, 8};
  batch.positions = {8, 8, 9};
  batch.slots = {30, 31, 32};
  batch.row_sequence = {0, 0, 0};
  batch.row_prefix = {8, 8, 8};
  batch.ancestor_start = {0, 1, 2, 4};
  batch.ancestor_slots = {30, 31, 30, 32};
  batch.sequence_start = {0, 8};
  for (int i = 0; i < 8; ++i) batch.sequence_slots.push_back(10 + i);
  batch.logit_rows = {0, 1, 2};
  absl::Status s = tree->Step(batch, &found);
  ASSERT_TRUE(s.ok()) << s;
  for (const auto& [path, row] :
       {std::pair<std::vector<int32_t>, int>{{7}, 0}, {{11}, 1}, {{7, 8}, 2}}) {
    std::vector<int32_t> tokens = prompt_;
    tokens.insert(tokens.end(), path.begin(), path.end());
    const int n = static_cast<int>(tokens.size());
    ASSERT_TRUE(plain->Step(PromptRows(tokens, 0, n, {n - 1}), &expected).ok());
    EXPECT_EQ(std::memcmp(expected.row(0), found.row(row), 32 * sizeof(float)), 0) << row;
  }
}

TEST_F(RunnerTest, BadBatchesAreRefusedByFieldAndLeaveTheCacheAlone) {
  auto runner = Make();
  RunnerOutput before, after, ignored;
  ASSERT_TRUE(runner->Step(PromptRows(prompt_, 0, 8, {7}), &before).ok());
  auto refuse = [&](auto change, const std::string& what) {
    RunnerBatch batch = PromptRows({9, 9, 9, 9, 9, 9, 9, 9}, 0, 8, {7});
    change(batch);
    const absl::Status s = runner->Step(batch, &ignored);
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_NE(std::string(s.message()).find(what), std::string::npos) << s;
  };
  refuse([](RunnerBatch& b) { b.tokens[3] = 32; }, "tokens[3] is 32");
  refuse([](RunnerBatch& b) { b.positions[0] = 64; }, "positions[0]");
  refuse([](RunnerBatch& b) { b.slots[2] = 48; }, "slots[2]");
  refuse([](RunnerBatch& b) { b.slots[2] = b.slots[1]; }, "slot");
  refuse([](RunnerBatch& b) { b.row_sequence[1] = 1; }, "row_sequence[1]");
  refuse([](RunnerBatch& b) { b.row_prefix[7] = 9; }, "row_prefix[7]");
  refuse([](RunnerBatch& b) { b.row_prefix[7] = 5; }, "row 7 does not see its own slot");
  refuse([](RunnerBatch& b) { b.sequence_slots[0] = -1; }, "sequence_slots[0]");
  refuse([](RunnerBatch& b) { b.sequence_start = {0, 7}; }, "sequence_start");
  refuse([](RunnerBatch& b) { b.ancestor_start.pop_back(); }, "ancestor_start");
  refuse([](RunnerBatch& b) { b.logit_rows = {8}; }, "logit_rows[0]");
  refuse([](RunnerBatch& b) { b.logit_rows = {1, 1}; }, "ascend");
  refuse([](RunnerBatch& b) { b.row_adapter.assign(8, 0); }, "row_adapter[0] is 0");
  refuse([](RunnerBatch& b) { b.row_adapter.assign(7, -1); }, "row_adapter has 7");
  refuse([](RunnerBatch& b) { b = RunnerBatch(); }, "no rows");
  RunnerBatch again = PromptRows(prompt_, 7, 8, {0});
  ASSERT_TRUE(runner->Step(again, &after).ok());
  EXPECT_EQ(before.values, after.values);
}

TEST_F(RunnerTest, HiddenStatesThatTheProgramDoesNotKeepAreRefused) {
  v1::Program program = ServingProgram(Config());
  program.mutable_outputs()->erase("hidden");
  auto runner = ProgramModelRunner::Create(program, "", 64, device_.get());
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->limits().hidden, 0);
  RunnerBatch batch = PromptRows(prompt_, 0, 8, {7});
  batch.wants_hidden = true;
  RunnerOutput logits;
  const absl::Status refused = (*runner)->Step(batch, &logits);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.message()).find("hidden"), std::string::npos) << refused;
}

TEST_F(RunnerTest, LoadsAHuggingFaceFolderByName) {
  auto files = NewPosixFileSystem();
  const std::string folder = JoinPath(testing::TempDir(), "runner-weights");
  ASSERT_TRUE(files->CreateDirectories(folder).ok());
  auto source = Make();
  Executor& executor = source->executor();
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::vector<int> buffers;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
    tensors.push_back({executor.buffer(i).name(), executor.spec(i).type()});
    buffers.push_back(i);
  }
  auto write = [&](float factor, size_t skip) {
    SafetensorsWriter writer(*files, JoinPath(folder, "model.safetensors"));
    auto kept = tensors;
    kept.erase(kept.begin() + static_cast<int64_t>(skip), kept.end());
    ASSERT_TRUE(writer.Begin(kept, {}).ok());
    for (size_t t = 0; t < kept.size(); ++t) {
      std::vector<float> values(static_cast<size_t>(kept[t].type.num_elements()));
      ASSERT_TRUE(executor.ReadBuffer(buffers[t], values.data(), kept[t].type.bytes()).ok());
      for (float& v : values) v *= factor;
      ASSERT_TRUE(writer.Append(values.data(), kept[t].type.bytes()).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
  };
  RunnerOutput expected, found;
  ASSERT_TRUE(source->Step(PromptRows(prompt_, 0, 8, {7}), &expected).ok());
  write(1, tensors.size());
  ASSERT_TRUE(Make(folder)->Step(PromptRows(prompt_, 0, 8, {7}), &found).ok());
  EXPECT_EQ(expected.values, found.values);
  write(2, tensors.size());
  ASSERT_TRUE(Make(folder)->Step(PromptRows(prompt_, 0, 8, {7}), &found).ok());
  EXPECT_NE(expected.values, found.values);
  // A tensor that no parameter is made of belongs to another model, unless the family says so.
  tensors.push_back({"model.layers.9.mlp.extra", {DType::kF32, {2}}});
  buffers.push_back(buffers.front());
  write(1, tensors.size());
  auto extra = ProgramModelRunner::Create(ServingProgram(Config()), folder, 64, device_.get());
  EXPECT_NE(std::string(extra.status().message()).find("'model.layers.9.mlp.extra'"),
            std::string::npos)
      << extra.status();
  WeightMap tolerant;
  tolerant.ignored = {".mlp.extra"};
  auto ignored =
      ProgramModelRunner::Create(ServingProgram(Config()), folder, 64, device_.get(), tolerant);
  EXPECT_TRUE(ignored.ok()) << ignored.status();
  tensors.pop_back();
  buffers.pop_back();
  write(1, tensors.size() - 1);
  auto missing = ProgramModelRunner::Create(ServingProgram(Config()), folder, 64, device_.get());
  EXPECT_NE(std::string(missing.status().message()).find(tensors.back().name), std::string::npos)
      << missing.status();
  LlamaConfig wider = Config();
  wider.intermediate_size = 40;
  auto shape = ProgramModelRunner::Create(ServingProgram(wider), folder, 64, device_.get());
  EXPECT_NE(std::string(shape.status().message()).find("mlp."), std::string::npos)
      << shape.status();
}

}  // namespace
}  // namespace espalier
