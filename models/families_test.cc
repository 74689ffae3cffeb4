// Tests which models are read and how they are served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/families_fixture.h"
#include "models/kv_cache_dtype.h"
#include "models/model.h"
#include "models/rope.h"
#include "models/serving_builder.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status Read(const std::string& fields) { return ReadModel("{" + fields + "}").status(); }

struct Refused {
  const char* what;
  const char* base;
  const char* change;
  const char* field;
};
void PrintTo(const Refused& r, std::ostream* out) { *out << r.what; }

class RefusedTest : public ::testing::TestWithParam<Refused> {};

// A switch that changes the mathematics is either supported (family_logits_test) or refused by
// name.
TEST_P(RefusedTest, UnsupportedSwitchesAreNamed) {
  const std::string base = GetParam().base;
  const absl::Status good = Read(base);
  ASSERT_TRUE(good.ok()) << good;
  const absl::Status status = Read(base + ", " + GetParam().change);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + GetParam().field));
  EXPECT_THAT(std::string(status.message()), HasSubstr("accepted"));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedTest,
    ::testing::Values(
        Refused{"RopeType", kLlama, R"("rope_scaling": {"rope_type": "magic"})",
                "rope_scaling.rope_type"},
        Refused{"RopeFactor", kLlama, R"("rope_scaling": {"type": "linear", "factor": 0})",
                "rope_scaling.factor"},
        Refused{"LongRopeLength", kLlama,
                R"("rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1, 1]})",
                "rope_scaling.short_factor"},
        Refused{"Activation", kLlama, R"("hidden_act": "quick_gelu")", "hidden_act"},
        Refused{"Quantised", kLlama, R"("quantization_config": {"bits": 4})",
                "quantization_config"},
        Refused{"PackedOtherwise", kLlama,
                R"("quantization_config": {"quant_method": "espalier", "version": 1,
                                           "group_size": 32, "bits": 4})",
                "quantization_config.version"},
        Refused{"KvHeads", kLlama, R"("num_key_value_heads": 3)", "num_key_value_heads"},
        Refused{"Huge", kLlama, R"("head_dim": 99999999999)", "head_dim"},
        // Thousands of layers would each have millions of frequencies.
        Refused{"HeadDim", kLlama, R"("head_dim": 8388608)", "head_dim"},
        Refused{"RopeUnknown", kLlama, R"("rope_parameters": {"rope_type": "default", "new": 2})",
                "rope_parameters.new"},
        Refused{"RopeByLayers", kLlama,
                R"("rope_parameters": {"full_attention": {"rope_type": "default"}})",
                "rope_parameters.full_attention"},
        Refused{"OldRopeByLayers", kLlama,
                R"("rope_scaling": {"sliding_attention": {"rope_type": "default"}})",
                "rope_scaling.sliding_attention"},
        Refused{"RopeLayersUnknown", kGemma3,
                R"("rope_parameters": {"full_attention": {}, "chunked_attention": {"factor": 2}})",
                "rope_parameters.chunked_attention"},
        Refused{"RopeOfLayers", kGemma3,
                R"("rope_parameters": {"sliding_attention": {"rope_type": "magic"}})",
                "rope_parameters.sliding_attention.rope_type"},
        Refused{"Infinite", kLlama, R"("rope_theta": -1)", "rope_theta"},
        Refused{"RopeNoFactor", kLlama, R"("rope_parameters": {"rope_type": "linear"})",
                "rope_parameters.factor"},
        Refused{"RopeTwice", kLlama,
                R"("rope_scaling": {"type": "linear", "factor": 2},
                   "rope_parameters": {"rope_type": "linear", "factor": 4})",
                "rope_parameters"},
        Refused{"RopeScalingUnknown", kLlama,
                R"("rope_scaling": {"type": "linear", "factor": 2, "attn_factor": 3})",
                "rope_scaling.attn_factor"},
        Refused{"LongRopeFactors", kPhi3,
                R"("max_position_embeddings": 64, "original_max_position_embeddings": 16,
                   "rope_scaling": {"type": "longrope", "factor": 2, "short_factor": [1, 1],
                                    "long_factor": [2, 2]})",
                "rope_scaling.factor"},
        Refused{"Unread", kLlama, R"("attention_multiplier": 0.5)", "attention_multiplier"},
        Refused{"UnreadSwitch", kOpt, R"("use_qk_norm": true)", "use_qk_norm"},
        Refused{"UnreadText", kGpt2, R"("position_embedding_type": "alibi")",
                "position_embedding_type"},
        Refused{"UnreadWithin", kMpt, R"("attn_config": {"rope": true})", "attn_config.rope"},
        Refused{"LayersOfMistral", kMistral, R"("layer_types": ["full_attention"])", "layer_types"},
        Refused{"ExpertsTwice", kMixtral, R"("num_local_experts": 4, "num_experts": 8)",
                "num_experts"},
        Refused{"BigCodeHeads", kBigCode, R"("num_key_value_heads": 2)", "num_key_value_heads"},
        Refused{"FalconHeads", kFalcon, R"("multi_query": false, "num_kv_heads": 1)",
                "num_kv_heads"},
        Refused{"ExpertsChosen", kMixtral, R"("num_local_experts": 1)", "num_experts_per_tok"},
        Refused{"OptGroups", kOpt, R"("num_key_value_heads": 1)", "num_key_value_heads"},
        Refused{"FalconNorms", kFalcon, R"("num_ln_in_parallel_attn": 2)",
                "num_ln_in_parallel_attn"},
        Refused{"FalconSerialGroups", kFalcon,
                R"("new_decoder_architecture": true, "parallel_attn": false)", "parallel_attn"},
        Refused{"MptMultiQuery", kMpt, R"("attn_config": {"attn_type": "multiquery_attention"})",
                "attn_config.attn_type"},
        Refused{"MptClip", kMpt, R"("attn_config": {"clip_qkv": -1})", "attn_config.clip_qkv"},
        Refused{"MptPositions", kMpt, R"("attn_config": {"alibi": false})", "attn_config.alibi"},
        Refused{"MptPrefix", kMpt, R"("attn_config": {"prefix_lm": true})",
                "attn_config.prefix_lm"},
        Refused{"MptBias", kMpt, R"("no_bias": false)", "no_bias"},
        Refused{"MptLogits", kMpt, R"("logit_scale": 0.5)", "logit_scale"},
        Refused{"MptWindow", kMpt, R"("attn_config": {"sliding_window_size": 128})",
                "attn_config.sliding_window_size"},
        Refused{"MptAttentionCap", kMpt, R"("attn_config": {"attn_logit_softcapping": 50.0})",
                "attn_config.attn_logit_softcapping"},
        Refused{"MptLogitCap", kMpt, R"("final_logit_softcapping": 30.0)",
                "final_logit_softcapping"},
        Refused{"MptActivation", kMpt, R"("ffn_config": {"ffn_act_fn": {"name": "silu"}})",
                "ffn_config.ffn_act_fn.name"},
        Refused{"MptGeluByTanh", kMpt,
                R"("ffn_config": {"ffn_act_fn": {"name": "gelu", "approximate": "tanh"}})",
                "ffn_config.ffn_act_fn.approximate"},
        Refused{"MptGated", kMpt, R"("ffn_config": {"ffn_type": "mptglu"})", "ffn_config.ffn_type"},
        Refused{"MptOverrides", kMpt, R"("block_overrides": {"order": []})", "block_overrides"},
        Refused{"FalconResidual", kFalcon, R"("apply_residual_connection_post_layernorm": true)",
                "apply_residual_connection_post_layernorm"},
        Refused{"GptCross", kGpt2, R"("add_cross_attention": true)", "add_cross_attention"},
        Refused{"GemmaBidirectional", kGemma3, R"("use_bidirectional_attention": true)",
                "use_bidirectional_attention"},
        Refused{"GemmaCap", kGemma3, R"("attn_logit_softcapping": 50.0)", "attn_logit_softcapping"},
        Refused{"LayerTypes", kGemma3, R"("layer_types": ["full_attention"])", "layer_types"},
        Refused{"LayerTypeName", kGemma3, R"("layer_types": ["full_attention", "linear"])",
                "layer_types"}),
    [](const ::testing::TestParamInfo<Refused>& info) { return std::string(info.param.what); });

TEST(ReadModelTest, MissingFieldsAreNamed) {
  for (const std::string& name : KnownArchitectures()) {
    const absl::Status status = Read("\"architectures\": [\"" + name + "\"]");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    const bool images = name.ends_with("ForConditionalGeneration");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(images ? "\"text_config\" is missing" : "\"vocab_size\" is missing"))
        << name;
  }
  const absl::Status status = Read(R"("architectures": ["BloomForCausalLM"])");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("MistralForCausalLM"));
  EXPECT_THAT(std::string(Read(R"("model_type": "rwkv")").message()), HasSubstr("\"model_type\""));
}

// Any number in any field gives a model or an error.
TEST(ReadModelTest, NoNumberInAnyFieldOverflows) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
        "sliding_window", "rope_theta", "partial_rotary_factor", "rms_norm_eps", "eos_token_id"}) {
    for (const char* number : {"0", "-1", "1e400", "9223372036854775807", "18446744073709551615",
                               "1e-320", "true", "[]", "{}", "\"8\""}) {
      std::string text = std::string(R"("architectures": ["MistralForCausalLM"], )") + kDecoder;
      const size_t at = text.find(std::string("\"") + field + "\"");
      if (at != std::string::npos) {
        const size_t end = std::min(text.find(',', at), text.size());
        text.replace(at, end - at, std::string("\"") + field + "\": " + number);
      } else {
        text += std::string(", \"") + field + "\": " + number;
      }
      absl::StatusOr<LanguageModel> model = ReadModel("{" + text + "}");
      if (!model.ok()) continue;
      OpRegistry registry;
      RegisterAllOperators(registry);
      auto serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
      if (serving.ok()) (void)BindAndInfer(registry, 1, &serving->graph);
      auto training = BuildTraining(registry, *model, 2);
      if (training.ok()) (void)BindAndInfer(registry, 1, &training->graph);
    }
  }
}

// Nor do they change what the model computes in transformers.
TEST(ReadModelTest, FieldsWithoutEffectAreAccepted) {
  const absl::Status status = Read(std::string(kLlama) + R"(,
      "_name_or_path": "x", "dtype": "bfloat16", "torch_dtype": "float16", "use_cache": true,
      "transformers_version": "5.24.0", "attention_dropout": 0.1, "initializer_range": 0.02,
      "bos_token_id": 1, "pad_token_id": 0, "pretraining_tp": 1, "id2label": {"0": "A"},
      "temperature": 0.7, "rope_interleaved": false, "unknown": null, "unknown_too": [],
      "unsloth_version": "2026.1", "num_experts": 0)");
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ReadModelTest, DisabledMptSwitchesAreIgnored) {
  const absl::Status status = Read(std::string(kMpt) + R"(,
      "final_logit_softcapping": null, "block_overrides": null,
      "attn_config": {"sliding_window_size": -1, "attn_logit_softcapping": null, "clip_qkv": 0},
      "ffn_config": {"ffn_type": "mptmlp", "fc_type": "torch",
                     "ffn_act_fn": {"name": "gelu", "approximate": "none"}})");
  EXPECT_TRUE(status.ok()) << status;
}

// Of all file formats only MPT's allows a maximum bias other than 8.
TEST(ReadModelTest, MptSlopesFollowMaximumBias) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto slopes = [&](const char* heads, const char* bias) {
    const auto model = ReadModel(absl::StrCat(
        R"({"architectures": ["MptForCausalLM"], "vocab_size": 16, "d_model": 12, "n_layers": 1,
            "n_heads": )",
        heads, R"(, "attn_config": {"alibi_bias_max": )", bias, "}}"));
    EXPECT_TRUE(model.ok()) << model.status();
    const auto serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
    EXPECT_TRUE(serving.ok()) << serving.status();
    const Graph& graph = serving->graph;
    const std::string& bytes = graph.value(graph.FindValue("layers.0.alibi_slopes")).constant;
    std::vector<float> found(bytes.size() / sizeof(float));
    std::memcpy(found.data(), bytes.data(), bytes.size());
    return found;
  };
  // 2^(-bias * i / heads) for i from 1 on; three heads take those of four: the second, the fourth,
  // the first.
  EXPECT_THAT(slopes("2", "4"), ElementsAre(1.0f / 4, 1.0f / 16));
  EXPECT_THAT(slopes("4", "16"), ElementsAre(1.0f / 16, 1.0f / 256, 1.0f / 4096, 1.0f / 65536));
  EXPECT_THAT(slopes("3", "4"), ElementsAre(1.0f / 4, 1.0f / 16, 1.0f / 2));
}

int64_t CacheWidth(const std::string& config) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto model = ReadModel(config);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return 0;
  const auto serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
  EXPECT_TRUE(serving.ok()) << serving.status();
  return serving->graph.value(serving->graph.FindValue("layers.0.k_cache")).type.dims[1];
}

// Qwen3Config defaults to 128, Qwen3MoeConfig has no default.
TEST(ReadModelTest, HeadDimDefaultsToHuggingFaceClass) {
  const auto width = [](const std::string& architecture) {
    return CacheWidth(
        absl::StrCat("{\"architectures\": [\"", architecture, "\"], ", kDecoder, "}"));
  };
  EXPECT_EQ(width("Qwen3ForCausalLM"), 128);
  EXPECT_EQ(width("Qwen3MoeForCausalLM"), 4);
  EXPECT_EQ(width("Qwen2ForCausalLM"), 4);
  EXPECT_EQ(width("Gemma2ForCausalLM"), 256);
}

// All that google/gemma-3-4b says of its text part; the rest is Gemma3TextConfig's defaults.
constexpr char kGemma3Images[] =
    R"("architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
       "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152}, "text_config": {
         "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
         "num_hidden_layers": 34, "sliding_window": 1024,
         "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})";

TEST(ReadModelTest, Gemma3TextPartIsReadAsModel) {
  const std::string config = std::string("{") + kGemma3Images + "}";
  const auto model = ReadModel(config);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.vocab_size, 262208);
  EXPECT_EQ(model->facts.layers, 34);
  EXPECT_EQ(model->facts.max_positions, 131072);
  EXPECT_THAT(model->facts.eos, ElementsAre(1, 106));
  EXPECT_EQ(CacheWidth(config), 4 * 256);
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
  ASSERT_TRUE(serving.ok()) << serving.status();
  std::vector<int64_t> windows;
  for (const Node& node : serving->graph.nodes()) {
    if (node.op == "paged_attention") windows.push_back(node.attributes.Int("window"));
  }
  ASSERT_EQ(windows.size(), 34u);
  for (size_t i = 0; i < windows.size(); ++i) EXPECT_EQ(windows[i], i % 6 == 5 ? 0 : 1024) << i;
  EXPECT_TRUE(
      IsIgnored(serving->weights, "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias"));
  EXPECT_TRUE(IsIgnored(serving->weights, "model.multi_modal_projector.mm_soft_emb_norm.weight"));
  EXPECT_FALSE(IsIgnored(serving->weights, "language_model.model.layers.34.mlp.up_proj.weight"));
  // Training would write half a model.
  const absl::Status training = BuildTraining(registry, *model, 4).status();
  EXPECT_EQ(training.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(training.message()), HasSubstr("text_config"));
  EXPECT_THAT(std::string(training.message()), HasSubstr("lose \"language_model.\""));
}

// What the refusal advises: its "text_config" as config.json, as little as that says.
TEST(ReadModelTest, Gemma3TextConfigIsReadAsConfig) {
  const std::string images = kGemma3Images;
  const size_t begin = images.find('{', images.find("\"text_config\""));
  const auto model = ReadModel(images.substr(begin));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.family, "gemma3_text");
  EXPECT_FALSE(model->facts.text_part);
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto training = BuildTraining(registry, *model, 4);
  ASSERT_TRUE(training.ok()) << training.status();
  const Graph& graph = training->graph;
  const auto dims = [&](const std::string& name) {
    const ValueId value = graph.FindValue(name);
    EXPECT_NE(value, kNoValue) << name;
    return value == kNoValue ? Dims{} : graph.value(value).type.dims;
  };
  EXPECT_EQ(dims("model.embed_tokens.weight"), (Dims{262208, 2560}));
  EXPECT_EQ(dims("model.layers.33.self_attn.q_proj.weight"), (Dims{8 * 256, 2560}));
  EXPECT_EQ(dims("model.layers.33.self_attn.k_proj.weight"), (Dims{4 * 256, 2560}));
}

TEST(ReadModelTest, OtherMultimodalTextPartsAreRefused) {
  const absl::Status status = Read(
      R"("architectures": ["Mistral3ForConditionalGeneration"], "text_config": {
           "model_type": "ministral3", "vocab_size": 16, "hidden_size": 8})");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"text_config.model_type\""));
}

TEST(ReadModelTest, OldFalconFieldNamesAreAliases) {
  const auto model = ReadModel(
      R"({"architectures": ["RWForCausalLM"], "vocab_size": 16, "hidden_size": 12, "n_layer": 3,
          "n_head": 3, "multi_query": true, "parallel_attn": true, "bias": false})");
  ASSERT_TRUE(model.ok()) << model.status();
  OpRegistry registry;
  RegisterAllOperators(registry);
  auto serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
  ASSERT_TRUE(serving.ok()) << serving.status();
  const absl::Status bound = BindAndInfer(registry, 1, &serving->graph);
  ASSERT_TRUE(bound.ok()) << bound;
  EXPECT_EQ(serving->graph.value(serving->graph.FindValue("layers.2.k_cache")).type.dims,
            (Dims{8, 4}));
  const WeightSource& q = serving->weights.sources.at("transformer.h.1.self_attention.q.weight");
  ASSERT_EQ(q.pieces.size(), 1u);
  EXPECT_EQ(q.pieces[0],
            (WeightSlice{
                "transformer.h.1.self_attention.query_key_value.weight", {20, 12}, false, 0, 12}));
}

TEST(BuildServingTest, KvCacheHasRequestedDType) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  // With ALiBi, whose slopes precede the scales, and without.
  for (const char* config :
       {R"({"architectures": ["MptForCausalLM"], "vocab_size": 16, "d_model": 12, "n_layers": 1,
            "n_heads": 3, "max_seq_len": 16, "attn_config": {"alibi": true}})",
        R"({"architectures": ["OPTForCausalLM"], "vocab_size": 16, "hidden_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 3, "ffn_dim": 24,
            "max_position_embeddings": 16})"}) {
    const auto model = ReadModel(config);
    ASSERT_TRUE(model.ok()) << model.status();
    for (const char* name : {"f32", "f16", "bf16", "int8"}) {
      const absl::StatusOr<DType> format = KvCacheDTypeOf(name);
      ASSERT_TRUE(format.ok()) << format.status();
      EXPECT_STREQ(KvCacheDTypeName(*format), name);
      ServingShape shape = {4, 4, 8, 1, 8, 8};
      shape.kv_cache_dtype = *format;
      auto serving = BuildServing(registry, *model, shape);
      ASSERT_TRUE(serving.ok()) << serving.status();
      const absl::Status bound = BindAndInfer(registry, 1, &serving->graph);
      ASSERT_TRUE(bound.ok()) << bound;
      const Graph& graph = serving->graph;
      EXPECT_EQ(graph.value(graph.FindValue("layers.0.v_cache")).type,
                (TensorType{*format, {8, 12}}));
      const ValueId scale = graph.FindValue("layers.0.v_scale");
      ASSERT_EQ(scale != kNoValue, *format == DType::kI8);
      if (scale != kNoValue) {
        EXPECT_EQ(graph.value(scale).type, (TensorType{DType::kF32, {8, 3}}));
      }
    }
  }
  EXPECT_EQ(KvCacheDTypeOf("fp8").status().message(),
            "KV cache format 'fp8', expected f32, f16, bf16 or int8");
}

TEST(AlibiSlopesTest, MatchDefinitionForAnyNumberOfHeads) {
  const std::vector<float> eight = AlibiSlopes(8);
  for (int i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(eight[i], std::exp2(-static_cast<float>(i + 1)));
  const std::vector<float> six = AlibiSlopes(6);
  EXPECT_EQ(six.size(), 6u);
  EXPECT_FLOAT_EQ(six[0], std::exp2(-2.0f));
  EXPECT_FLOAT_EQ(six[4], std::exp2(-1.0f));
  EXPECT_FLOAT_EQ(six[5], std::exp2(-3.0f));
}

}  // namespace
}  // namespace espalier
