// Tests models that are built for training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "models/families_fixture.h"
#include "models/model.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class BuildTrainingTest : public ::testing::Test {
 protected:
  BuildTrainingTest() { RegisterAllOperators(registry_); }
  absl::StatusOr<TrainingModel> Build(const std::string& fields, int64_t length) {
    const absl::StatusOr<LanguageModel> model = ReadModel("{" + fields + "}");
    if (!model.ok()) return model.status();
    return BuildTraining(registry_, *model, length);
  }
  Initializer Start(const Graph& graph, const std::string& parameter) {
    const ValueId value = graph.FindValue(parameter);
    EXPECT_NE(value, kNoValue) << parameter;
    return value == kNoValue ? Initializer{} : graph.value(value).initializer;
  }
  OpRegistry registry_;
};

TEST_F(BuildTrainingTest, UntrainableModelsAreRefusedByName) {
  const auto error = [&](const std::string& fields, int64_t length) {
    return std::string(Build(fields, length).status().message());
  };
  EXPECT_THAT(error(kMixtral, 4), HasSubstr("'mixtral' is a mixture of experts"));
  EXPECT_THAT(error(std::string(kLlama) + R"(, "quantization_config": {
                      "quant_method": "espalier", "version": 2, "group_size": 32, "bits": 4})",
                    4),
              HasSubstr("packed in 4 bits"));
  EXPECT_THAT(error(std::string(kOpt) + R"(, "max_position_embeddings": 16)", 17),
              HasSubstr("examples have 17 tokens; accepted: 1 to 16"));
  EXPECT_EQ(Build(kOpt, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

// A new model starts from the authors' initialization, not from zeros that never learn.
TEST_F(BuildTrainingTest, ParametersHaveGpt2Initialization) {
  const auto gpt = Build(std::string(kGpt2) + R"(, "n_layer": 8)", 4);
  ASSERT_TRUE(gpt.ok()) << gpt.status();
  const Graph& graph = gpt->graph;
  EXPECT_EQ(Start(graph, "transformer.wte.weight").kind, Initializer::kNormal);
  EXPECT_DOUBLE_EQ(Start(graph, "transformer.h.7.attn.c_attn.weight").scale, 0.02);
  EXPECT_DOUBLE_EQ(Start(graph, "transformer.h.7.attn.c_proj.weight").scale, 0.02 / 4);
  EXPECT_DOUBLE_EQ(Start(graph, "transformer.h.7.mlp.c_proj.weight").scale, 0.02 / 4);
  EXPECT_EQ(Start(graph, "transformer.h.7.mlp.c_fc.bias").kind, Initializer::kZeros);
  EXPECT_EQ(Start(graph, "transformer.ln_f.weight").kind, Initializer::kOnes);
  // Gemma's files hold norm weights minus 1.
  const auto gemma = Build(kGemma3, 4);
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_EQ(Start(gemma->graph, "model.norm.weight").kind, Initializer::kConstant);
  EXPECT_EQ(Start(gemma->graph, "model.norm.weight").mean, 0);
}

// Plans and reports name nodes: equal names in all layers but for the number.
TEST_F(BuildTrainingTest, NodeNamesAreEqualInAllLayers) {
  for (const std::string& fields :
       {std::string(kDecoder) + R"(, "architectures": ["MistralForCausalLM"])",
        std::string(kGpt2) + R"(, "n_layer": 2)"}) {
    const auto training = Build(fields, 4);
    ASSERT_TRUE(training.ok()) << training.status();
    std::multiset<std::string> first, second;
    for (const Node& node : training->graph.nodes()) {
      for (const auto& [layer, names] : {std::pair{"0.", &first}, {"1.", &second}}) {
        for (const std::string& stem : {std::string("layers."), std::string("transformer.h.")}) {
          if (node.name.rfind(stem + layer, 0) != 0) continue;
          names->insert(node.name.substr(stem.size() + 2));
        }
      }
    }
    EXPECT_GT(first.size(), 10u);
    EXPECT_EQ(first, second);
  }
}

}  // namespace
}  // namespace espalier
