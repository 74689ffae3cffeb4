// Names that adapter files may use for a model's layers. tests/conformance compares the logits.
#include "models/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "models/model.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr char kText[] =
    R"("vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
       "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4)";

// An adapter of rank 2 for the output layer [16, 8], under the name `head`.
absl::StatusOr<LoraModel> Adapted(const std::string& config, const std::string& head) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const absl::StatusOr<LanguageModel> model = ReadModel(config);
  if (!model.ok()) return model.status();
  absl::StatusOr<ServingModel> serving = BuildServing(registry, *model, {4, 4, 8, 1, 8, 8});
  if (!serving.ok()) return serving.status();
  if (absl::Status s = BindAndInfer(registry, 1, &serving->graph); !s.ok()) return s;
  const std::string module = absl::StrCat("base_model.model.", head);
  LoraAdapter adapter;
  adapter.name = "head";
  adapter.config = {.rank = 2, .scale = 1, .targets = {"lm_head"}};
  adapter.tensors[module + ".lora_A.weight"] = Dims{2, 8};
  adapter.tensors[module + ".lora_B.weight"] = Dims{16, 2};
  return AddLoraAdapters(registry, *std::move(serving), absl::MakeConstSpan(&adapter, 1));
}

TEST(LoraTest, MultimodalOutputLayerIsFoundUnderOldName) {
  for (const char* tied : {"true", "false"}) {
    const std::string config =
        absl::StrCat(R"({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {)",
                     kText, R"(, "tie_word_embeddings": )", tied, "}}");
    for (const std::string head : {"lm_head", "language_model.lm_head"}) {
      const absl::StatusOr<LoraModel> adapted = Adapted(config, head);
      ASSERT_TRUE(adapted.ok()) << head << ", tied: " << tied << ": " << adapted.status();
      const auto found = adapted->parameters.find("lm_head.lora_b");
      ASSERT_NE(found, adapted->parameters.end());
      EXPECT_EQ(found->second.at(0).tensor, "base_model.model." + head + ".lora_B.weight");
    }
  }
}

TEST(LoraTest, OldNameIsUnknownInTextOnlyModels) {
  const std::string config =
      absl::StrCat(R"({"architectures": ["Gemma3ForCausalLM"], )", kText, "}");
  EXPECT_TRUE(Adapted(config, "lm_head").ok());
  EXPECT_THAT(std::string(Adapted(config, "language_model.lm_head").status().message()),
              HasSubstr("is for no linear layer of the model"));
}

}  // namespace
}  // namespace espalier
