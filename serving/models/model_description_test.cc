#include "serving/models/model_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "serving/models/check_same_vocabulary.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LlamaConfig Ours() {
  LlamaConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 512;
  return config;
}

ModelFacts Facts(const LlamaConfig& config) { return ReadModel(ToConfigJson(config))->facts; }

std::string Error(const std::string& json) {
  return std::string(DescribeModel(json).status().message());
}

TEST(DescribeModel, ReadsWhatOurTrainingExports) {
  const ModelDescription model = *DescribeModel(ToConfigJson(Ours()));
  EXPECT_EQ(model.model.facts.family, "llama");
  EXPECT_EQ(model.model.facts.vocab_size, Ours().vocab_size);
  EXPECT_EQ(model.model.facts.max_positions, 512);
  EXPECT_EQ(model.model.facts.config, ToConfigJson(Ours()));
  EXPECT_EQ(model.tokenizer->vocabulary(), 256);
  EXPECT_TRUE(model.tokenizer->eos().empty());
}

TEST(DescribeModel, ReadsAllEndOfSequenceTokens) {
  LlamaConfig config = Ours();
  config.vocab_size = 260;
  config.eos = {257, 259};
  EXPECT_EQ(DescribeModel(ToConfigJson(config))->tokenizer->eos(), (std::vector<int>{257, 259}));
  config.eos = {260};
  EXPECT_THAT(Error(ToConfigJson(config)), HasSubstr("260"));
}

TEST(DescribeModel, NamesTheMissingFiles) {
  LlamaConfig config = Ours();
  config.tokenizer = "";
  const absl::Status status = DescribeModel(ToConfigJson(config)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
}

TEST(DescribeModel, TakesTheTokenizerOfItsFiles) {
  LlamaConfig config = Ours();
  config.tokenizer = "";
  TokenizerFiles files;
  files.tokenizer_json =
      R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "hi": 1, "</s>": 2}},
          "pre_tokenizer": {"type": "Whitespace"}})";
  files.tokenizer_config_json =
      R"({"eos_token": "</s>", "chat_template": "{{ messages[0].content }}{{ eos_token }}"})";
  files.generation_config_json = R"({"temperature": 0.5})";
  const ModelDescription model = *DescribeModel(ToConfigJson(config), files);
  EXPECT_EQ(model.tokenizer->Encode("hi what"), (std::vector<int>{1, 0}));
  EXPECT_EQ(model.tokenizer->eos(), std::vector<int>{2});
  EXPECT_EQ(*model.chat->Render({.messages = {{{"role", "user"}, {"content", "hi"}}}}), "hi</s>");
  EXPECT_EQ(model.generation.temperature, 0.5);
  config.vocab_size = 2;
  EXPECT_THAT(std::string(DescribeModel(ToConfigJson(config), files).status().message()),
              HasSubstr("has 3 tokens, config.json a vocab_size of 2"));
  EXPECT_THAT(std::string(DescribeModel(ToConfigJson(Ours()), files).status().message()),
              HasSubstr("remove one"));
}

// gemma-3-1b-it has 262,144 rows, its tokenizer one token more, for images.
TEST(DescribeModel, AddedTokensThatTheMatricesLackAreText) {
  LlamaConfig config = Ours();
  config.tokenizer = "";
  config.vocab_size = 3;
  TokenizerFiles files;
  files.tokenizer_json =
      R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "hi": 1, "</s>": 2}},
          "pre_tokenizer": {"type": "WhitespaceSplit"},
          "added_tokens": [{"id": 2, "content": "</s>", "special": true},
                           {"id": 3, "content": "<image>", "special": true}]})";
  absl::StatusOr<ModelDescription> narrow = DescribeModel(ToConfigJson(config), files);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ(narrow->tokenizer->vocabulary(), 3);
  EXPECT_EQ(narrow->tokenizer->TokenId("<image>"), -1);
  EXPECT_EQ(narrow->tokenizer->TokenBytes(3), "");
  EXPECT_EQ(*narrow->tokenizer->TryEncode("hi <image></s>", {.parse_special = true}),
            (std::vector<int>{1, 0, 2}));
  EXPECT_EQ(narrow->omitted_added_tokens, (std::map<int, std::string>{{3, "<image>"}}));

  // One of more rows has the same tokens; another one at that place is none of them.
  config.vocab_size = 8;
  const ModelDescription wide = *DescribeModel(ToConfigJson(config), files);
  EXPECT_EQ(wide.tokenizer->vocabulary(), 4);
  EXPECT_TRUE(CheckSameVocabulary("a", wide, "b", *narrow).ok());
  EXPECT_TRUE(CheckSameVocabulary("a", *narrow, "b", wide).ok());
  EXPECT_TRUE(CheckSameVocabulary("a", *narrow, "b", *narrow).ok());
  TokenizerFiles others = files;
  others.tokenizer_json.replace(others.tokenizer_json.find("<image>"), 7, "<sound>");
  const ModelDescription other = *DescribeModel(ToConfigJson(config), others);
  EXPECT_THAT(std::string(CheckSameVocabulary("a", other, "b", *narrow).message()),
              HasSubstr("token 3 is \"<image>\" in 'b'"));
}

TEST(DescribeModel, TokensThatTheMatricesLackAreRefusedWhereTheyMatter) {
  LlamaConfig config = Ours();
  config.tokenizer = "";
  config.vocab_size = 3;
  const auto error = [&](const std::string& more, const std::string& tokenizer_config,
                         const std::string& generation = "") {
    TokenizerFiles files;
    files.tokenizer_json = absl::StrCat(
        R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2}},
            "added_tokens": [{"id": 3, "content": "<x>", "special": true}])",
        more, "}");
    files.tokenizer_config_json = tokenizer_config;
    files.generation_config_json = generation;
    return std::string(DescribeModel(ToConfigJson(config), files).status().message());
  };
  EXPECT_EQ(error("", ""), "");
  EXPECT_THAT(error("", R"({"eos_token": "<x>"})"),
              HasSubstr("eos_token is \"<x>\", token 3; config.json has a vocab_size of 3"));
  EXPECT_THAT(error("", R"({"bos_token": "<x>"})"), HasSubstr("bos_token is \"<x>\""));
  EXPECT_THAT(error("", "", R"({"eos_token_id": [3]})"), HasSubstr("eos_token_id 3"));
  EXPECT_THAT(error(R"(, "post_processor": {"type": "BertProcessing", "sep": ["b", 2],
                         "cls": ["<x>", 3]})",
                    ""),
              HasSubstr("post_processor: adds \"<x>\", token 3"));
  config.vocab_size = 2;
  EXPECT_THAT(error("", ""), HasSubstr("has 3 tokens, config.json a vocab_size of 2"));
}

TEST(DescribeModel, RefusesOtherFamiliesByName) {
  std::string json = ToConfigJson(Ours());
  const size_t at = json.find("LlamaForCausalLM");
  json.replace(at, 16, "BloomForCausalLM");
  EXPECT_THAT(Error(json), HasSubstr("BloomForCausalLM"));
  EXPECT_THAT(Error(json), HasSubstr("LlamaForCausalLM"));
  EXPECT_EQ(DescribeModel(json).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(DescribeModel, RefusesWhatIsNoConfiguration) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("\xFF\xFE"),
        std::string(100000, '['), std::string("{\"vocab_size\": 1e400}")}) {
    EXPECT_EQ(DescribeModel(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(Error("{\"vocab_size\": 256}"), HasSubstr("hidden_size"));
}

TEST(Shapes, HoldAllRequestsAtFullLengthWithTheirTrees) {
  const Expansion expansion = *Expansion::Parse("1,1,3,1,1");
  const ServingSize size = {
      .max_sequence_length = 100, .max_requests = 4, .max_tokens_per_batch = 64};
  const ServingShape llm = *LlmShape(Facts(Ours()), size, expansion, 2);
  EXPECT_EQ(llm.kv_slots, 4 * (100 + 2 * 11));
  EXPECT_EQ(llm.max_rows, 64);
  EXPECT_EQ(llm.max_ancestor_slots, 64 * 5);
  EXPECT_EQ(SsmShape(Facts(Ours()), llm, size, expansion, 2)->kv_slots, llm.kv_slots);
  LlamaConfig narrow = Ours();
  narrow.max_position_embeddings = 50;
  ServingSize shorter = size;
  shorter.short_ssms = true;
  EXPECT_EQ(SsmShape(Facts(narrow), llm, shorter, expansion, 2)->kv_slots, 4 * (50 + 2 * 11));
  EXPECT_THAT(
      std::string(
          LlmShape(Facts(Ours()), {.max_sequence_length = 513}, expansion, 1).status().message()),
      HasSubstr("513, the model has 512 positions (max_position_embeddings"));
  EXPECT_FALSE(LlmShape(Facts(Ours()), {.max_requests = 2147483647}, expansion, 1).ok());
}

// Beyond max_position_embeddings dynamic scaling changes the logits of short prompts, too.
TEST(Shapes, DynamicScalingLengthensSequencesOnlyWhereThatIsAskedFor) {
  const Expansion expansion = *Expansion::Parse("1,1,1");
  const auto facts = [](const std::string& scaling) {
    std::string json = ToConfigJson(Ours());
    json.insert(json.find('{') + 1, absl::StrCat("\"rope_parameters\": {", scaling, "}, "));
    const absl::StatusOr<LanguageModel> model = ReadModel(json);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->facts : ModelFacts();
  };
  const auto served = [&](const ModelFacts& llm, int asked) {
    return LlmShape(llm, {.max_sequence_length = asked}, expansion, 1)->max_positions;
  };
  const ModelFacts dynamic = facts(R"("rope_type": "dynamic", "factor": 4.0)");
  EXPECT_EQ(served(dynamic, 0), 512);
  EXPECT_EQ(served(dynamic, 100), 100);
  EXPECT_EQ(served(dynamic, 2048), 2048);
  EXPECT_FALSE(LlmShape(dynamic, {.max_sequence_length = 2049}, expansion, 1).ok());
  // Others turn short sequences as they turn long ones.
  EXPECT_EQ(served(facts(R"("rope_type": "linear", "factor": 4.0)"), 0), 2048);
  EXPECT_EQ(served(facts(R"("rope_type": "yarn", "factor": 4.0)"), 0), 2048);
}

TEST(Shapes, AnSsmThatWouldStopDraftingUnnoticedIsRefusedUnlessThatIsAllowed) {
  const Expansion expansion = *Expansion::Parse("1,1,1");
  LlamaConfig narrow = Ours();
  narrow.max_position_embeddings = 99;
  ServingSize size = {.max_sequence_length = 100};
  const ServingShape llm = *LlmShape(Facts(Ours()), size, expansion, 1);
  const absl::Status refused = SsmShape(Facts(narrow), llm, size, expansion, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("99 positions"), HasSubstr("served for 100 tokens"),
                    HasSubstr("--max-sequence-length=99"), HasSubstr("--short-ssms")));
  size.max_sequence_length = 99;
  const ServingShape shorter = *LlmShape(Facts(Ours()), size, expansion, 1);
  EXPECT_TRUE(SsmShape(Facts(narrow), shorter, size, expansion, 1).ok());
  size.short_ssms = true;
  EXPECT_TRUE(SsmShape(Facts(narrow), llm, size, expansion, 1).ok());
}

TEST(Shapes, AsManySlotsAsAreAskedForAreSharedByAllRequests) {
  const Expansion expansion = *Expansion::Parse("1,1,3,1,1");
  ServingSize size = {.max_requests = 4, .max_tokens_per_batch = 64, .kv_cache_tokens = 300};
  // A sequence and its tree of 11 nodes fit, whatever the model's 512 positions.
  ServingShape llm = *LlmShape(Facts(Ours()), size, expansion, 1);
  EXPECT_EQ(llm.kv_slots, 300);
  EXPECT_EQ(llm.max_positions, 289);
  EXPECT_EQ(SsmShape(Facts(Ours()), llm, size, expansion, 1)->kv_slots, 300);
  size.max_sequence_length = 289;
  EXPECT_TRUE(LlmShape(Facts(Ours()), size, expansion, 1).ok());
  size.max_sequence_length = 290;
  EXPECT_THAT(std::string(LlmShape(Facts(Ours()), size, expansion, 1).status().message()),
              HasSubstr("kv_cache_tokens is 300; one sequence of 290 tokens"));
  // No more than all could need.
  size = {.max_sequence_length = 100, .max_requests = 2, .kv_cache_tokens = 100000};
  EXPECT_EQ(LlmShape(Facts(Ours()), size, expansion, 1)->kv_slots, 2 * 111);
  size = {.max_requests = 2, .kv_cache_tokens = 12};
  EXPECT_FALSE(LlmShape(Facts(Ours()), size, expansion, 1).ok());
}

}  // namespace
}  // namespace espalier
