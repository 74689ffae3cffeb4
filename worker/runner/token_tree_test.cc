// Draft trees may exceed the 64 nodes of a bit mask: a tree of hundreds of nodes, deeper than a KV
// block, gives each node the bits of decoding its path token by token.
#include "serving/speculative/token_tree.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "models/quantize.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "serving/runner/batch_builder.h"
#include "worker/executor/initialize.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 48, kSlots = 512, kPrompt = 37, kNodes = 200, kDepth = 24;

std::unique_ptr<ProgramModelRunner> Make(DType kv_cache_dtype, Device* device) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  LlamaConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 24;
  config.max_position_embeddings = 128;
  const ServingShape shape{.max_rows = 256,
                           .max_output_rows = 256,
                           .kv_slots = kSlots,
                           .max_sequences = 2,
                           .max_context_slots = 128,
                           .max_ancestor_slots = kNodes * kDepth,
                           .kv_cache_dtype = kv_cache_dtype};
  absl::StatusOr<LanguageModel> model = ReadModel(ToConfigJson(config));
  EXPECT_TRUE(model.ok()) << model.status();
  absl::StatusOr<ServingModel> serving = BuildServing(registry, *model, shape);
  EXPECT_TRUE(serving.ok()) << serving.status();
  EXPECT_TRUE(BindAndInfer(registry, 1, &serving->graph).ok());
  auto program = LowerServing(registry, serving->graph);
  EXPECT_TRUE(program.ok()) << program.status();
  auto runner = ProgramModelRunner::Create(*program, "", 128, device);
  EXPECT_TRUE(runner.ok()) << runner.status();
  Executor& executor = (*runner)->executor();
  v1::Initializer normal;
  normal.set_kind(v1::Initializer::NORMAL);
  normal.set_scale(0.3);
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
    const TensorSpec& spec = executor.spec(i);
    std::vector<float> values(static_cast<size_t>(spec.num_elements()));
    EXPECT_TRUE(Initialize(normal, executor.buffer(i).name(), 4, spec, values.data()).ok());
    EXPECT_TRUE(executor.WriteBuffer(i, values.data(), spec.bytes()).ok());
  }
  return *std::move(runner);
}

// One path of full depth; other nodes have random parents.
TokenTree Tree() {
  std::mt19937 random(7);
  TokenTree tree(static_cast<int>(random() % kVocabulary));
  const auto add = [&](int parent) {
    const int token = static_cast<int>(random() % kVocabulary);
    return tree.Propose(parent, token, 0);
  };
  for (int parent = 0; tree.depth(parent) < kDepth;) parent = add(parent);
  while (tree.drafted() < kNodes) {
    const int parent = static_cast<int>(random() % tree.size());
    if (tree.depth(parent) < kDepth) add(parent);
  }
  return tree;
}

// Rows [begin, tokens.size()) of a sequence, with the logits of the last one.
SequenceRows Rows(const std::vector<int>& tokens, int begin, const std::vector<int32_t>& slots) {
  SequenceRows sequence{.slots = slots};
  for (int i = begin; i < static_cast<int>(tokens.size()); ++i) {
    sequence.rows.push_back({.token = tokens[i],
                             .position = i,
                             .slot = slots[i],
                             .prefix = i + 1,
                             .wants_logits = i + 1 == static_cast<int>(tokens.size())});
  }
  return sequence;
}

class TokenTreeTest : public testing::TestWithParam<DType> {};

TEST_P(TokenTreeTest, EveryNodeMatchesItsPathDecodedAlone) {
  const std::unique_ptr<Device> device = NewCpuDevice({2, 1 << 26});
  const auto in_tree = Make(GetParam(), device.get()), alone = Make(GetParam(), device.get());
  const TokenTree tree = Tree();
  ASSERT_GT(tree.drafted(), 64);
  std::vector<int32_t> slots(kSlots);  // of which the sequence has the first ones, in no order
  for (int i = 0; i < kSlots; ++i) slots[i] = (i * 167 + 31) % kSlots;
  std::vector<int> prompt;
  for (int i = 0; i + 1 < kPrompt; ++i) prompt.push_back((i * 29 + 3) % kVocabulary);
  prompt.push_back(tree.token(0));

  SequenceRows sequence = Rows(prompt, 0, slots);
  std::vector<std::vector<int32_t>> paths = {{}};
  for (int node = 1; node < tree.size(); ++node) {
    std::vector<int32_t> path = paths[tree.parent(node)];
    path.push_back(slots[kPrompt + node]);
    sequence.rows.push_back({.token = tree.token(node),
                             .position = kPrompt - 1 + tree.depth(node),
                             .slot = path.back(),
                             .prefix = kPrompt,
                             .ancestors = path,
                             .wants_logits = true});
    paths.push_back(std::move(path));
  }
  const absl::StatusOr<StepOutput> found = RunRows(*in_tree, {&sequence, 1});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->batches(), 1);

  const SequenceRows start = Rows(prompt, 0, slots);
  ASSERT_TRUE(RunRows(*alone, {&start, 1}).ok());
  for (int node = 0; node < tree.size(); ++node) {
    std::vector<int> tokens = prompt;
    absl::StatusOr<StepOutput> expected;
    const std::vector<int> path = tree.PathTo(node);
    for (size_t depth = 0; depth <= path.size(); ++depth) {
      if (depth > 0) tokens.push_back(path[depth - 1]);
      const SequenceRows row = Rows(tokens, static_cast<int>(tokens.size()) - 1, slots);
      expected = RunRows(*alone, {&row, 1});
      ASSERT_TRUE(expected.ok()) << expected.status();
    }
    ASSERT_EQ(std::memcmp(expected->at(0, 0), found->at(0, node), kVocabulary * sizeof(float)), 0)
        << "node " << node << " in depth " << tree.depth(node);
  }
  // The logits differ between nodes.
  EXPECT_NE(std::memcmp(found->at(0, 65), found->at(0, 129), kVocabulary * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, TokenTreeTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kI8),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace espalier
