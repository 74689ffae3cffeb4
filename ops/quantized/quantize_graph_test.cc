#include "ops/quantized/quantize_graph.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "models/model.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

TEST(QuantizeGraphTest, OnlyLinearWeightsOfLlamaAreQuantized) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  LlamaConfig config;
  config.vocab_size = 256;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    ServingShape shape;
    shape.max_rows = shape.max_output_rows = 4;
    shape.kv_slots = shape.max_context_slots = 32;
    shape.max_sequences = 2;
    shape.max_ancestor_slots = 8;
    const auto graph = BuildLlamaServing(registry, config, shape);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16,
                                      WeightFormat::kInt8, WeightFormat::kInt4}) {
      const auto quantized = QuantizeLinears(registry, *graph, format);
      ASSERT_TRUE(quantized.ok()) << quantized.status();
      ASSERT_EQ(quantized->nodes().size(), graph->nodes().size());
      int matrices = 0;
      for (size_t n = 0; n < graph->nodes().size(); ++n) {
        const Node &old = graph->nodes()[n], &now = quantized->nodes()[n];
        const bool packed = old.op == "linear" && format != WeightFormat::kF32;
        EXPECT_EQ(now.op, packed ? "quantized_linear" : old.op);
        matrices += packed;
      }
      EXPECT_EQ(matrices, format == WeightFormat::kF32 ? 0 : 2 * 7 + 1);
      // The embedding table is read by rows and stays, even if the output layer is tied to it.
      EXPECT_NE(quantized->FindValue("model.embed_tokens.weight"), kNoValue);
      EXPECT_EQ(quantized->FindValue("model.layers.0.mlp.up_proj.weight") == kNoValue,
                format != WeightFormat::kF32);
    }
  }
}

// The router's matrix stays: the choice of experts must not depend on the format.
TEST(QuantizeGraphTest, ExpertsAreQuantizedButNotTheRouter) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto model = ReadModel(
      R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 40, "hidden_size": 32,
          "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
          "num_key_value_heads": 1, "num_local_experts": 4})");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto serving = BuildServing(registry, *model, {4, 4, 32, 2, 32, 8, 0});
  ASSERT_TRUE(serving.ok()) << serving.status();
  for (const auto& [format, type] :
       {std::pair<WeightFormat, TensorType>{WeightFormat::kInt4, {DType::kU8, {4, 3, 320}}},
        {WeightFormat::kBF16, {DType::kBF16, {4, 48, 32}}},
        {WeightFormat::kF16, {DType::kF16, {4, 48, 32}}}}) {
    const auto quantized = QuantizeLinears(registry, serving->graph, format);
    ASSERT_TRUE(quantized.ok()) << quantized.status();
    const std::string up =
        absl::StrCat("model.layers.1.block_sparse_moe.experts.w3.weight.", Name(format));
    const ValueId value = quantized->FindValue(up);
    ASSERT_NE(value, kNoValue);
    EXPECT_EQ(quantized->value(value).type, type);
    EXPECT_NE(quantized->FindValue("model.layers.1.block_sparse_moe.gate.weight"), kNoValue);
    int plain = 0, experts = 0;
    for (const Node& node : quantized->nodes()) {
      plain += node.op == "linear" || node.op == "expert_linear";
      experts += node.op == "quantized_expert_linear";
    }
    EXPECT_EQ(plain, 2);
    EXPECT_EQ(experts, 2 * 3);
  }
}

TEST(QuantizeGraphTest, FormatPerWeight) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto model = ReadModel(
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 32,
          "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
          "num_key_value_heads": 1})");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto serving = BuildServing(registry, *model, {4, 4, 32, 2, 32, 8, 0});
  ASSERT_TRUE(serving.ok()) << serving.status();
  const std::map<std::string, WeightFormat> formats = {
      {"model.layers.0.mlp.up_proj.weight", WeightFormat::kInt8},
      {"model.layers.1.mlp.up_proj.weight", WeightFormat::kInt4},
      {"model.layers.0.mlp.down_proj.weight", WeightFormat::kBF16}};
  const auto quantized =
      QuantizeLinears(registry, serving->graph, [&](const std::string& parameter) {
        const auto found = formats.find(parameter);
        return found == formats.end() ? WeightFormat::kF32 : found->second;
      });
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  int packed = 0;
  for (const Node& node : quantized->nodes()) packed += node.op == "quantized_linear";
  EXPECT_EQ(packed, 3);
  for (const auto& [name, format] : formats) {
    EXPECT_EQ(quantized->FindValue(name), kNoValue);
    EXPECT_NE(quantized->FindValue(absl::StrCat(name, ".", Name(format))), kNoValue);
  }
  EXPECT_NE(quantized->FindValue("model.layers.1.mlp.down_proj.weight"), kNoValue);
}

TEST(QuantizeGraphTest, FormatNamesRoundTrip) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16,
                                    WeightFormat::kInt8, WeightFormat::kInt4}) {
    ASSERT_TRUE(WeightFormatOf(Name(format)).ok());
    EXPECT_EQ(*WeightFormatOf(Name(format)), format);
  }
  EXPECT_EQ(*WeightFormatOf(""), WeightFormat::kF32);
  EXPECT_EQ(WeightFormatOf("fp8").status().message(),
            "weight format 'fp8', expected f32, bf16, f16, int8 or int4");
}

TEST(QuantizeGraphTest, WeightsTooLargeForF16AreRefused) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float weights[] = {65504, -65519, 0x1p-24f, infinity, 65520, 1};
  const auto good = QuantizeWeight("w", WeightFormat::kF16, 2, 2, weights);
  ASSERT_TRUE(good.ok()) << good.status();
  uint16_t bits[4];
  std::memcpy(bits, good->data(), sizeof(bits));
  EXPECT_EQ(bits[0], 0x7bff);
  EXPECT_EQ(bits[1], 0xfbff);
  EXPECT_EQ(bits[2], 1);
  EXPECT_EQ(bits[3], 0x7c00);
  EXPECT_EQ(QuantizeWeight("w", WeightFormat::kF16, 2, 3, weights).status().message(),
            "weight 'w' has the number 65520, too large for f16, whose largest is 65504; bf16 can "
            "hold it");
}

}  // namespace
}  // namespace espalier
