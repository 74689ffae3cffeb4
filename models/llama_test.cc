#include "models/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

LlamaConfig Small() {
  LlamaConfig c;
  c.vocab_size = 256;
  c.hidden_size = 32;
  c.intermediate_size = 80;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.max_position_embeddings = 64;
  return c;
}

int64_t ParametersOf(const Graph& graph) {
  int64_t n = 0;
  for (const Value& v : graph.values()) {
    if (v.kind == ValueKind::kParameter) n += v.type.num_elements();
  }
  return n;
}

std::set<std::string> ParameterNames(const Graph& graph) {
  std::set<std::string> names;
  for (const Value& v : graph.values()) {
    if (v.kind == ValueKind::kParameter) names.insert(v.name + ToString(v.type));
  }
  return names;
}

class LlamaTest : public ::testing::Test {
 protected:
  LlamaTest() { RegisterAllOperators(registry_); }
  OpRegistry registry_;
};

TEST(LlamaConfigTest, RoundTripsThroughConfigJson) {
  LlamaConfig c = Small();
  c.eos = {3, 7};
  const auto model = ReadModel(ToConfigJson(c));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.family, "llama");
  EXPECT_EQ(model->facts.vocab_size, 256);
  EXPECT_EQ(model->facts.max_positions, 64);
  EXPECT_EQ(model->facts.layers, 2);
  EXPECT_EQ(model->facts.eos, (std::vector<int>{3, 7}));
  EXPECT_EQ(model->facts.tokenizer, "bytes");
}

struct BadConfig {
  const char* what;
  const char* from;  // replaced in a valid file
  const char* to;
  absl::StatusCode code;
  const char* message;
};

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, BadFieldIsNamed) {
  std::string text = ToConfigJson(Small());
  size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, strlen(GetParam().from), GetParam().to);
  auto c = ReadModel(text);
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), GetParam().code) << c.status();
  EXPECT_THAT(std::string(c.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadConfigTest,
    ::testing::Values(
        BadConfig{"Missing", "\"hidden_size\": 32,", "", absl::StatusCode::kInvalidArgument,
                  "\"hidden_size\" is missing"},
        BadConfig{"Type", "\"vocab_size\": 256", "\"vocab_size\": \"256\"",
                  absl::StatusCode::kInvalidArgument, "\"vocab_size\" is \"256\""},
        BadConfig{"Negative", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": -2",
                  absl::StatusCode::kInvalidArgument, "\"num_hidden_layers\" is -2"},
        BadConfig{"HugeInteger", "\"vocab_size\": 256", "\"vocab_size\": 18446744073709551615",
                  absl::StatusCode::kInvalidArgument, "vocab_size"},
        BadConfig{"KvHeads", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
                  absl::StatusCode::kInvalidArgument, "\"num_key_value_heads\" is 3"},
        BadConfig{"OddHead", "\"head_dim\": 8", "\"head_dim\": 7",
                  absl::StatusCode::kInvalidArgument, "turn 7 of the 7 elements of a head"},
        BadConfig{"Scaling", "\"rope_scaling\": null",
                  "\"rope_scaling\": {\"rope_type\": \"other\"}", absl::StatusCode::kUnimplemented,
                  "\"rope_scaling.rope_type\""},
        BadConfig{"Activation", "\"silu\"", "\"mish\"", absl::StatusCode::kUnimplemented,
                  "\"hidden_act\""},
        BadConfig{"Family", "\"LlamaForCausalLM\"", "\"LamaForCausalLM\"",
                  absl::StatusCode::kUnimplemented, "\"architectures\" is [\"LamaForCausalLM\"]"},
        BadConfig{"Eos", "\"eos_token_id\": null", "\"eos_token_id\": [1, \"x\"]",
                  absl::StatusCode::kInvalidArgument, "\"eos_token_id\""},
        BadConfig{"EosRange", "\"eos_token_id\": null", "\"eos_token_id\": 256",
                  absl::StatusCode::kInvalidArgument, "eos_token_id is 256"},
        BadConfig{"NotJson", "{", "[", absl::StatusCode::kInvalidArgument, "config.json: "}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(LlamaConfigTest, DeepNestingIsRefused) {
  std::string deep(100000, '[');
  auto c = ReadModel(deep);
  EXPECT_EQ(c.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ReadModel("").ok());
  EXPECT_FALSE(ReadModel("[]").ok());
}

TEST_F(LlamaTest, TrainingGraphHasDocumentedParameters) {
  for (bool tied : {false, true}) {
    LlamaConfig c = Small();
    c.tie_word_embeddings = tied;
    auto graph = BuildLlamaTraining(registry_, c, 16);
    ASSERT_TRUE(graph.ok()) << graph.status();
    absl::Status bound = BindAndInfer(registry_, 3, &*graph);
    ASSERT_TRUE(bound.ok()) << bound;
    EXPECT_EQ(ParametersOf(*graph), CountParameters(c));
    EXPECT_EQ(graph->FindValue("lm_head.weight") == kNoValue, tied);
    ValueId loss = graph->FindOutput("loss");
    ASSERT_NE(loss, kNoValue);
    EXPECT_EQ(graph->value(loss).type, (TensorType{DType::kF32, {}}));
    EXPECT_NE(graph->FindOutput("accuracy"), kNoValue);
    EXPECT_EQ(graph->metadata.at("family"), "llama");
    EXPECT_EQ(graph->metadata.at("config"), ToConfigJson(c));
  }
}

TEST_F(LlamaTest, ServingGraphSharesTrainingParameters) {
  for (bool tied : {false, true}) {
    LlamaConfig c = Small();
    c.tie_word_embeddings = tied;
    ServingShape shape{8, 4, 64, 3, 100, 20};
    auto serving = BuildLlamaServing(registry_, c, shape);
    ASSERT_TRUE(serving.ok()) << serving.status();
    absl::Status bound = BindAndInfer(registry_, 1, &*serving);
    ASSERT_TRUE(bound.ok()) << bound;
    EXPECT_EQ(serving->value(serving->FindOutput("logits")).type,
              (TensorType{DType::kF32, {4, c.vocab_size}}));
    EXPECT_EQ(serving->value(serving->FindValue("layers.1.k_cache")).type,
              (TensorType{DType::kF32, {64, 16}}));
    EXPECT_EQ(serving->metadata.at("dynamic.tokens"), "rows");
    EXPECT_EQ(serving->metadata.at("dynamic.logit_rows"), "output_rows");
    EXPECT_EQ(serving->metadata.count("dynamic.sequence_slots"), 0u);

    auto training = BuildLlamaTraining(registry_, c, 16);
    ASSERT_TRUE(training.ok());
    EXPECT_EQ(ParameterNames(*serving), ParameterNames(*training));
  }
}

TEST_F(LlamaTest, SequencesBeyondMaxPositionsAreRefused) {
  auto graph = BuildLlamaTraining(registry_, Small(), 65);
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(graph.status().message()), HasSubstr("max_position_embeddings (64)"));
}

}  // namespace
}  // namespace espalier
