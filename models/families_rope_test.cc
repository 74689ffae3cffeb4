// Tests the frequencies and lengths of scaled rotary embeddings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "models/families_fixture.h"
#include "models/model.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

// As in vLLM. The default length and the cache size follow from it.
TEST(ReadModelTest, RopeScalingExtendsContext) {
  const auto positions = [](const std::string& base, const std::string& scaling) -> int64_t {
    const auto model = ReadModel("{" + base + R"(, "max_position_embeddings": 64,
                                 "rope_scaling": {)" +
                                 scaling + "}}");
    EXPECT_TRUE(model.ok()) << scaling << ": " << model.status();
    return model.ok() ? model->facts.max_positions : 0;
  };
  EXPECT_EQ(positions(kLlama, R"("rope_type": "default")"), 64);
  EXPECT_EQ(positions(kLlama, R"("type": "linear", "factor": 4.0)"), 256);
  EXPECT_EQ(positions(kLlama, R"("type": "linear", "factor": 0.5)"), 64);
  EXPECT_EQ(positions(kLlama, R"("type": "linear", "factor": 1e300)"), 1 << 30);
  EXPECT_EQ(positions(kFalcon, R"("type": "linear", "factor": 4.0)"), 256);
  const std::string yarn = R"("rope_type": "yarn", "factor": 4.0)";
  EXPECT_EQ(positions(kLlama, yarn), 256);
  EXPECT_EQ(positions(kLlama, yarn + R"(, "original_max_position_embeddings": 32)"), 128);
  EXPECT_EQ(positions(kLlama, yarn + R"(, "original_max_position_embeddings": 8)"), 64);
  // These files state the scaled length.
  EXPECT_EQ(positions(kLlama, R"("rope_type": "llama3", "factor": 8.0,
                                 "original_max_position_embeddings": 16)"),
            64);
  EXPECT_EQ(positions(kLlama, R"("rope_type": "longrope", "short_factor": [1, 1], "factor": 4.0,
                                 "long_factor": [4, 8])"),
            64);
  EXPECT_EQ(positions(kLlama, R"("rope_type": "dynamic", "factor": 4.0)"), 256);
  EXPECT_EQ(positions(kLlama, R"("type": "dynamic", "factor": 0.5)"), 64);
  EXPECT_EQ(positions(kFalcon, R"("type": "dynamic", "factor": 2.0)"), 128);
  EXPECT_EQ(positions(kGemma3, R"("rope_type": "linear", "factor": 8.0)"), 64);
  // A sequence that long is built.
  const auto model = ReadModel(std::string("{") + kLlama + R"(, "max_position_embeddings": 64,
                               "rope_scaling": {"type": "linear", "factor": 4.0}})");
  ASSERT_TRUE(model.ok()) << model.status();
  OpRegistry registry;
  RegisterAllOperators(registry);
  EXPECT_TRUE(BuildTraining(registry, *model, 256).ok());
  EXPECT_FALSE(BuildTraining(registry, *model, 257).ok());
}

struct RotationRates {
  double first = 0, second = 0, magnitude = 0;
};
// The frequencies of the first two pairs of a model served for so many positions.
RotationRates Turns(const LanguageModel& model, int max_positions) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto serving = BuildServing(registry, model, {4, 4, 8, 1, 8, 8, max_positions});
  EXPECT_TRUE(serving.ok()) << serving.status();
  if (!serving.ok()) return {};
  for (const Node& node : serving->graph.nodes()) {
    if (node.op != "rotary") continue;
    const std::vector<double> frequencies = node.attributes.Floats("frequencies");
    return {frequencies.at(0), frequencies.at(1), node.attributes.Float("magnitude")};
  }
  ADD_FAILURE() << "nothing turns";
  return {};
}

// longrope: one set of frequencies for the lifetime of the served model, by its longest sequence.
TEST(ReadModelTest, LongRopeUsesLongestServedSequence) {
  const auto model =
      ReadModel(std::string("{\"architectures\": [\"Phi3ForCausalLM\"], ") + kDecoder +
                R"(, "max_position_embeddings": 64, "original_max_position_embeddings": 16,
         "rope_scaling": {"type": "longrope", "short_factor": [1, 1], "long_factor": [4, 8]}})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.short_positions, 16);
  EXPECT_EQ(model->facts.default_positions(), 64);
  EXPECT_DOUBLE_EQ(Turns(*model, 16).second, 0.01);
  EXPECT_DOUBLE_EQ(Turns(*model, 17).second, 0.01 / 8);
  EXPECT_DOUBLE_EQ(Turns(*model, 0).second, 0.01 / 8);
}

// Phi3Config defaults to 4096 for the original length.
TEST(ReadModelTest, Phi3LongRopeUsesDefaultOriginalLength) {
  const std::string scaling =
      R"(, "max_position_embeddings": 131072, "rope_scaling": {
           "type": "longrope", "short_factor": [1, 1], "long_factor": [4, 8]}})";
  const auto model =
      ReadModel(std::string("{\"architectures\": [\"Phi3ForCausalLM\"], ") + kDecoder + scaling);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.short_positions, 4096);
  EXPECT_DOUBLE_EQ(Turns(*model, 4096).second, 0.01);
  EXPECT_DOUBLE_EQ(Turns(*model, 4097).second, 0.01 / 8);
  EXPECT_DOUBLE_EQ(Turns(*model, 0).magnitude, std::sqrt(1 + std::log(32.0) / std::log(4096.0)));
  // Others are as long as the file says.
  const auto llama = ReadModel(std::string("{") + kLlama + scaling);
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->facts.short_positions, 131072);
}

// transformers' _compute_dynamic_ntk_parameters with the longest sequence as seq_len: with two
// pairs, the base is multiplied by the square of factor * longest / 64 - (factor - 1).
TEST(ReadModelTest, DynamicScalingUsesLongestServedSequence) {
  for (const char* base : {kLlama, kFalcon}) {
    const auto model = ReadModel(std::string("{") + base + R"(, "max_position_embeddings": 64,
                                 "rope_scaling": {"type": "dynamic", "factor": 4.0}})");
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->facts.short_positions, 64);
    EXPECT_EQ(model->facts.default_positions(), 64);
    for (const auto& [positions, second] :
         {std::pair{16, 0.01}, {64, 0.01}, {128, 1.0 / 500}, {256, 1.0 / 1300}, {0, 1.0 / 1300}}) {
      EXPECT_DOUBLE_EQ(Turns(*model, positions).first, 1) << positions;
      EXPECT_NEAR(Turns(*model, positions).second, second, 1e-15) << positions;
    }
  }
}

// transformers 5 writes one object per type of layers, with all fields inside.
TEST(ReadModelTest, RopeParametersPerLayerTypeAreRead) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  // The second frequency of the layers' queries.
  const auto second = [&](const std::string& fields) {
    std::vector<double> found;
    const auto model = ReadModel("{" + fields + "}");
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return found;
    const auto serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
    EXPECT_TRUE(serving.ok()) << serving.status();
    for (const Node& node : serving->graph.nodes()) {
      if (node.op == "rotary") found.push_back(node.attributes.Floats("frequencies")[1]);
    }
    return found;
  };
  const std::string layers =
      std::string(kGemma3) + R"(, "layer_types": ["sliding_attention", "full_attention"])";
  EXPECT_THAT(second(layers), ElementsAre(1e-2, 1e-2, 1e-3, 1e-3));
  EXPECT_THAT(second(layers + R"(, "rope_parameters": {
                       "full_attention": {"rope_type": "linear", "factor": 8.0,
                                          "rope_theta": 10000.0},
                       "sliding_attention": {"rope_type": "default", "rope_theta": 400.0}})"),
              ElementsAre(0.05, 0.05, 1e-2 / 8, 1e-2 / 8));
  EXPECT_THAT(second(layers + R"(, "rope_theta": 10000.0, "rope_local_base_freq": 400.0,
                       "rope_parameters": {"full_attention": {"rope_type": "default"}})"),
              ElementsAre(0.05, 0.05, 1e-2, 1e-2));
  EXPECT_THAT(second(layers + R"(, "rope_scaling": {"rope_type": "linear", "factor": 8.0})"),
              ElementsAre(1e-2, 1e-2, 1e-3 / 8, 1e-3 / 8));
  // It also says how many of four pairs are rotated.
  const auto turned = [&](const std::string& more) {
    const auto model = ReadModel("{" + std::string(kLlama) + R"(, "head_dim": 8, )" + more + "}");
    EXPECT_TRUE(model.ok()) << model.status();
    const auto serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
    for (const Node& node : serving->graph.nodes()) {
      if (node.op == "rotary") return node.attributes.Floats("frequencies").size();
    }
    return size_t{0};
  };
  EXPECT_EQ(turned(R"("rope_theta": 10000.0)"), 4u);
  EXPECT_EQ(turned(R"("rope_parameters": {"partial_rotary_factor": 0.5})"), 2u);
  EXPECT_EQ(turned(R"("partial_rotary_factor": 0.25,
                      "rope_parameters": {"partial_rotary_factor": 0.5})"),
            2u);
  EXPECT_EQ(turned(R"("partial_rotary_factor": 0.25, "rope_parameters": {"rope_theta": 5.0})"), 1u);
}

}  // namespace
}  // namespace espalier
