#include "models/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As PEFT 0.17 writes it.
constexpr char kWritten[] = R"("alpha_pattern": {}, "auto_mapping": null,
    "base_model_name_or_path": "org/model", "bias": "none", "corda_config": null,
    "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
    "layers_to_transform": null, "loftq_config": {}, "lora_bias": false, "lora_dropout": 0.05,
    "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
    "peft_type": "LORA", "qalora_group_size": 16, "rank_pattern": {}, "revision": null,
    "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
    "use_dora": false, "use_qalora": false)";

absl::StatusOr<AdapterConfig> Read(const std::string& fields) {
  return ReadAdapterConfig(std::string("{") + kWritten + ", " + fields + "}");
}

TEST(AdapterConfig, ScaleIsAlphaOverRankOrItsRoot) {
  const auto plain = Read(R"("r": 16, "lora_alpha": 24, "target_modules": ["v_proj", "q_proj"])");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->rank, 16);
  EXPECT_DOUBLE_EQ(plain->scale, 1.5);
  EXPECT_THAT(plain->targets, ElementsAre("v_proj", "q_proj"));
  const auto stable = Read(R"("r": 16, "lora_alpha": 24, "use_rslora": true)");
  ASSERT_TRUE(stable.ok()) << stable.status();
  EXPECT_DOUBLE_EQ(stable->scale, 6);
  // A pattern says no more than the weights do.
  const auto all = Read(R"("r": 2, "lora_alpha": 0.5, "target_modules": "all-linear")");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_DOUBLE_EQ(all->scale, 0.25);
  EXPECT_THAT(all->targets, IsEmpty());
}

TEST(AdapterConfig, UnsupportedSwitchesAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("r": 4, "use_dora": true)", "use_dora"},
      {R"("r": 4, "bias": "all")", "bias"},
      {R"("r": 4, "lora_bias": true)", "lora_bias"},
      {R"("r": 4, "modules_to_save": ["lm_head"])", "modules_to_save"},
      {R"("r": 4, "rank_pattern": {"q_proj": 2})", "rank_pattern"},
      {R"("r": 4, "alpha_pattern": {"q_proj": 2})", "alpha_pattern"},
      {R"("r": 4, "layer_replication": [[0, 4]])", "layer_replication"},
      {R"("r": 4, "trainable_token_indices": [3])", "trainable_token_indices"},
      {R"("r": 4, "target_parameters": ["experts"])", "target_parameters"},
      {R"("r": 4, "alora_invocation_tokens": [1])", "alora_invocation_tokens"},
      {R"("r": 4, "init_lora_weights": "olora")", "init_lora_weights"},
      {R"("r": 4, "task_type": "SEQ_CLS")", "task_type"},
      {R"("r": 4, "peft_type": "LOHA")", "peft_type"},
      {R"("r": 4, "some_switch_of_tomorrow": "on")", "some_switch_of_tomorrow"},
      {R"("r": 0)", "r"},
      {R"("r": 5000)", "r"},
      {R"("lora_alpha": 8)", "r"},
      {R"("r": 4, "lora_alpha": "8")", "lora_alpha"},
      {R"("r": 4, "target_modules": [3])", "target_modules"}};
  for (const auto& [fields, name] : cases) {
    // Of duplicate fields the last counts, as in JSON readers.
    const absl::Status status = Read(fields).status();
    EXPECT_FALSE(status.ok()) << fields;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string("adapter_config.json: field \"") + name + "\""));
  }
  EXPECT_THAT(std::string(ReadAdapterConfig("[]").status().message()),
              HasSubstr("adapter_config.json"));
  EXPECT_FALSE(ReadAdapterConfig(R"({"r": 4})").ok());  // no method
}

}  // namespace
}  // namespace espalier
