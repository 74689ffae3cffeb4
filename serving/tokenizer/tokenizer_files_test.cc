// Behavior that needs no reference; tests/conformance/tokenizers_test.py compares with the Hugging
// Face library.
#include "serving/tokenizer/tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/generation_config.h"
#include "serving/tokenizer/onig_syntax.h"
#include "serving/tokenizer/regex.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// A small SentencePiece model: "ab" is a token, bytes cover the rest.
std::string SmallJson() {
  return R"({"model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
      "vocab": {"<unk>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "▁": 5, "▁ab": 6, "<0xE6>": 7,
                "<0xBC>": 8, "<0xA2>": 9, "<|x|>": 10},
      "merges": ["a b", "▁ ab"]},
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "added_tokens": [{"id": 1, "content": "</s>", "special": true, "normalized": false},
                     {"id": 10, "content": "<|x|>", "special": true, "normalized": false}]})";
}

TEST(LoadTokenizer, SpecialTokensAreTextUnlessAskedFor) {
  const auto tokenizer = *LoadTokenizer({.tokenizer_json = SmallJson()});
  EXPECT_THAT(*tokenizer->TryEncode("ab<|x|>ab", {.parse_special = true}), ElementsAre(6, 10, 6));
  for (const int id : tokenizer->Encode("ab<|x|>ab")) EXPECT_NE(id, 10);
  EXPECT_EQ(tokenizer->TokenBytes(6), " ab");
  EXPECT_EQ(tokenizer->TokenBytes(7), "\xE6");
  EXPECT_EQ(tokenizer->TokenId("<|x|>"), 10);
  EXPECT_TRUE(tokenizer->IsSpecial(10));
}

// As in transformers: templates use tokens that added_tokens may lack.
TEST(LoadTokenizer, ConfigurationMakesTokensSpecial) {
  std::string json = SmallJson();
  const size_t list = json.find(R"({"id": 1, "content": "</s>")");
  json.replace(list, json.size() - list, "]}");
  const auto plain = *LoadTokenizer({.tokenizer_json = json});
  EXPECT_FALSE(plain->IsSpecial(10));
  const auto tokenizer = *LoadTokenizer(
      {.tokenizer_json = json, .tokenizer_config_json = R"({"eos_token": {"content": "</s>"},
           "additional_special_tokens": ["<|x|>", {"content": "<|not there|>"}]})"});
  EXPECT_THAT(*tokenizer->TryEncode("ab<|x|>ab</s>", {.parse_special = true}),
              ElementsAre(6, 10, 6, 1));
  EXPECT_TRUE(tokenizer->IsSpecial(1) && tokenizer->IsSpecial(10));
  EXPECT_FALSE(tokenizer->IsSpecial(4));
  EXPECT_THAT(tokenizer->eos(), ElementsAre(1));
  for (const int id : tokenizer->Encode("ab<|x|>ab")) EXPECT_NE(id, 10);
  EXPECT_THAT(LoadTokenizer({.tokenizer_json = json,
                             .tokenizer_config_json = R"({"additional_special_tokens": {}})"})
                  .status()
                  .message(),
              HasSubstr("additional_special_tokens"));
}

TEST(LoadTokenizer, BytesOfACharacterAreEmittedTogether) {
  const auto tokenizer = *LoadTokenizer({.tokenizer_json = SmallJson()});
  const auto stream = tokenizer->NewStreamDecoder();
  EXPECT_EQ(stream->Append(6), "ab");
  EXPECT_EQ(stream->Append(7), "");
  EXPECT_EQ(stream->Append(8), "");
  EXPECT_EQ(stream->Append(9), "");
  EXPECT_EQ(stream->Append(6), "\xE6\xBC\xA2 ab");
  EXPECT_EQ(stream->Append(7), "");
  EXPECT_EQ(stream->Flush(), "\xEF\xBF\xBD");
}

// A later byte can turn valid characters into U+FFFD, but not what is already invalid.
TEST(LoadTokenizer, ByteRunIsEmittedAtItsEndOrFirstInvalidByte) {
  const std::string wrong = "\xEF\xBF\xBD";
  const auto tokenizer = *LoadTokenizer({.tokenizer_json = SmallJson()});
  const auto stream = tokenizer->NewStreamDecoder();
  for (const int id : {7, 8, 9, 7, 8}) EXPECT_EQ(stream->Append(id), "");
  EXPECT_EQ(stream->Append(7), wrong + wrong + wrong + wrong + wrong + wrong);
  EXPECT_EQ(stream->Append(8), wrong);
  EXPECT_EQ(stream->Append(9), wrong);
  EXPECT_EQ(stream->Append(4), "ab");
  for (const int id : {7, 8, 9, 7, 8, 9}) EXPECT_EQ(stream->Append(id), "");
  EXPECT_EQ(stream->Append(4),
            "\xE6\xBC\xA2\xE6\xBC\xA2"
            "ab");
  for (const int id : {7, 8, 9, 7}) EXPECT_EQ(stream->Append(id), "");
  EXPECT_EQ(stream->Flush(), wrong + wrong + wrong + wrong);
}

// DeepSeek-R1-Distill-Qwen's tokenizer.json adds no tokens; its class does.
TEST(LoadTokenizer, TokenizerClassAddsBosAndEosPerConfiguration) {
  const auto tokens = [](const std::string& config, bool around = false) {
    TokenizerFiles files{.tokenizer_json = SmallJson(), .tokenizer_config_json = config};
    if (around) {
      files.tokenizer_json.pop_back();
      files.tokenizer_json += R"(, "post_processor": {"type": "TemplateProcessing",
          "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "e"}}],
          "special_tokens": {"e": {"id": "e", "ids": [1], "tokens": ["</s>"]}}}})";
    }
    const auto tokenizer = LoadTokenizer(files);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *(*tokenizer)->TryEncode("ab", {.add_special = true});
  };
  const std::string ends = R"("bos_token": {"content": "<|x|>"}, "eos_token": "</s>")";
  const auto with = [&](const std::string& fields) { return "{" + fields + ", " + ends + "}"; };
  EXPECT_THAT(tokens(with(R"("tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true)")),
              ElementsAre(10, 6));
  EXPECT_THAT(tokens(with(R"("tokenizer_class": "GemmaTokenizer", "add_eos_token": true)")),
              ElementsAre(10, 6, 1));
  EXPECT_THAT(tokens(with(R"("tokenizer_class": "CodeLlamaTokenizer")")), ElementsAre(10, 6));
  EXPECT_THAT(tokens(with(R"("tokenizer_class": "LlamaTokenizer", "add_bos_token": false)")),
              ElementsAre(6));
  EXPECT_THAT(tokens(R"({"tokenizer_class": "LlamaTokenizer"})"), ElementsAre(6));
  EXPECT_THAT(tokens(with(R"("tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true)")),
              ElementsAre(6));
  // tokenizer.json applies where the configuration says nothing.
  EXPECT_THAT(tokens(with(R"("tokenizer_class": "LlamaTokenizer")"), true), ElementsAre(6, 1));
  EXPECT_THAT(tokens(with(R"("tokenizer_class": "LlamaTokenizer", "add_bos_token": true)"), true),
              ElementsAre(10, 6));
  const auto error = [](const std::string& config) {
    return std::string(
        LoadTokenizer({.tokenizer_json = SmallJson(), .tokenizer_config_json = config})
            .status()
            .message());
  };
  EXPECT_THAT(error(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true})"),
              HasSubstr("add_bos_token is true, but there is no bos_token"));
  EXPECT_THAT(error(R"({"add_bos_token": "yes"})"), HasSubstr("add_bos_token"));
}

TEST(LoadTokenizer, AdditionalTemplatesPrecedeTheConfiguration) {
  const TokenizerConfig config =
      *ReadTokenizerConfig({.tokenizer_config_json = R"({"chat_template": [
            {"name": "default", "template": "d"}, {"name": "tool_use", "template": "old"}]})",
                            .additional_chat_templates = {{"tool_use", "t"}, {"rag", "r"}}});
  EXPECT_THAT(config.chat_templates,
              ElementsAre(Pair("default", "d"), Pair("rag", "r"), Pair("tool_use", "t")));
}

TEST(LoadTokenizer, RefusesInconsistentFiles) {
  const auto error = [](TokenizerFiles files) {
    return std::string(LoadTokenizer(files).status().message());
  };
  EXPECT_THAT(error({.tokenizer_json = "{"}), HasSubstr("tokenizer.json"));
  EXPECT_THAT(error({.tokenizer_json = std::string(100, '[') + std::string(100, ']')}),
              HasSubstr("64 levels"));
  EXPECT_THAT(
      error({.tokenizer_json = SmallJson(), .generation_config_json = R"({"eos_token_id": 99})"}),
      HasSubstr("eos_token_id 99"));
  EXPECT_THAT(
      error({.tokenizer_json = SmallJson(), .tokenizer_config_json = R"({"eos_token": "<end>"})"}),
      HasSubstr("<end>"));
}

TEST(GenerationConfig, NamesUnsupportedFieldsThatChangeAnswers) {
  EXPECT_THAT(ReadGenerationConfig(
                  R"({"min_new_tokens": 3, "max_length": 4096, "num_beams": 4, "top_k": 5,
                      "suppress_tokens": [7], "stop_strings": "end", "transformers_version": "4"})")
                  ->unused,
              ElementsAre("max_length", "num_beams"));
  EXPECT_THAT(
      ReadGenerationConfig(
          R"({"min_new_tokens": 0, "max_length": null, "num_beams": 1, "suppress_tokens": [],
                      "guidance_scale": 1.0, "use_cache": true, "max_new_tokens": 9})")
          ->unused,
      ElementsAre());
}

TEST(GenerationConfig, ReadsDefaultsOfRequestFields) {
  const GenerationConfig config = *ReadGenerationConfig(
      R"({"min_new_tokens": 3, "stop_strings": ["end", "stop"], "suppress_tokens": [7, -1, 8],
          "bad_words_ids": [[5, 6], [2], [9]], "eos_token_id": 2})");
  EXPECT_EQ(config.min_new_tokens, 3);
  EXPECT_THAT(config.stop_strings, ElementsAre("end", "stop"));
  EXPECT_THAT(config.bad_words,
              ElementsAre(ElementsAre(7), ElementsAre(8), ElementsAre(5, 6), ElementsAre(9)))
      << "an answer must be able to end";
  EXPECT_THAT(config.unused, ElementsAre());
  EXPECT_THAT(ReadGenerationConfig(R"({"stop_strings": "end"})")->stop_strings, ElementsAre("end"));
  for (const auto& [json, place] : {std::pair{R"({"stop_strings": [1]})", "stop_strings[0]"},
                                    {R"({"bad_words_ids": [[1], []]})", "bad_words_ids[1]"},
                                    {R"({"bad_words_ids": [[1], ["a"]]})", "bad_words_ids[1][0]"},
                                    {R"({"suppress_tokens": 7})", "suppress_tokens"},
                                    {R"({"min_new_tokens": -1})", "min_new_tokens"}}) {
    EXPECT_THAT(std::string(ReadGenerationConfig(json)->defaults.message()), HasSubstr(place));
  }
  std::string many = R"({"suppress_tokens": [0)";
  for (int i = 0; i < 5000; ++i) many += ",1";
  EXPECT_THAT(std::string(ReadGenerationConfig(many + "]}")->defaults.message()),
              HasSubstr("more than 4096"));
}

TEST(GenerationConfig, ReadsOneOrSeveralEosAndNamesErrors) {
  EXPECT_THAT(ReadGenerationConfig(R"({"eos_token_id": 7})")->eos, ElementsAre(7));
  const GenerationConfig config = *ReadGenerationConfig(
      R"({"eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.9, "top_k": 20, "pad_token_id": -1, "new_one": {}})");
  EXPECT_THAT(config.eos, ElementsAre(1, 2));
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_FALSE(config.pad.has_value());
  for (const auto& [json, field] : std::vector<std::pair<std::string, std::string>>{
           {R"({"eos_token_id": [1, "x"]})", "eos_token_id[1]"},
           {R"({"bos_token_id": -5})", "bos_token_id"},
           {"[]", "object"}}) {
    EXPECT_THAT(std::string(ReadGenerationConfig(json).status().message()), HasSubstr(field))
        << json;
  }
  // Requests that use no defaults do not need these fields.
  for (const auto& [fields, field] : std::vector<std::pair<std::string, std::string>>{
           {R"("top_p": 0)", "top_p"},
           {R"("top_p": 1.5)", "top_p"},
           {R"("temperature": -1)", "temperature"},
           {R"("top_k": 2.5)", "top_k"},
           {R"("max_new_tokens": 99999999999)", "max_new_tokens"}}) {
    const auto read = ReadGenerationConfig(
        absl::StrCat(R"({"eos_token_id": 3, "min_p": 0.1, "num_beams": 4, )", fields, "}"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->defaults.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_THAT(std::string(read->defaults.message()), HasSubstr(field));
    EXPECT_THAT(read->eos, ElementsAre(3));
    EXPECT_FALSE(read->min_p.has_value()) << "all or nothing";
  }
}

TEST(Regex, FollowsOnigurumaWherePcreDiffers) {
  const auto all = [](const char* pattern, const char* text) {
    const Regex regex = *Regex::Compile(pattern);
    std::vector<std::pair<size_t, size_t>> matches;
    EXPECT_TRUE(Regex::Matcher(regex).FindAll(text, &matches).ok());
    return matches;
  };
  EXPECT_THAT(all(R"(\h+)", "xyz0aF"), ElementsAre(Pair(3, 6)));   // hexadecimal digits
  EXPECT_THAT(all(R"(a{2}+)", "aaaaa"), ElementsAre(Pair(0, 4)));  // twice, again and again
  EXPECT_THAT(all("^b", "a\nb"), ElementsAre(Pair(2, 3)));         // at every line
  EXPECT_THAT(all("(?m)a.b", "a\nb"), ElementsAre(Pair(0, 3)));    // the dot takes newlines
  EXPECT_THAT(all("[a-c&&[^b]]", "abc"), ElementsAre(Pair(0, 1), Pair(2, 3)));
  EXPECT_THAT(all("x*", "ax"), ElementsAre(Pair(0, 0), Pair(1, 2)));
  EXPECT_FALSE(TranslateOniguruma("(?~a)").ok());
  EXPECT_FALSE(TranslateOniguruma(std::string(1000, '(')).ok());
}

}  // namespace
}  // namespace espalier
