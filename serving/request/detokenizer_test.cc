#include "serving/request/detokenizer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/request/request.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {
namespace {

constexpr int kBegin = 1, kIs = 2, kParis = 3, kBlank = 4, kNewline = 5, kTurn = 6;
constexpr int kE6 = 7, kBC = 8, kA2 = 9, kComma = 10;

constexpr char kStrip[] = R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";
constexpr char kMetaspace[] = R"({"type": "Metaspace", "replacement": "▁"})";

// A tokenizer of words with space marks before and after them.
std::shared_ptr<const Tokenizer> With(const std::string& decoder, const std::string& before = "▁",
                                      const std::string& behind = "") {
  std::string vocabulary = R"("<unk>": 0, "<s>": 1, "\n": 5, "[TURN]": 6,
                              "<0xE6>": 7, "<0xBC>": 8, "<0xA2>": 9, ",": 10)";
  for (const auto& [word, id] : {std::pair("is", 2), std::pair("Paris", 3), std::pair("", 4)}) {
    absl::StrAppend(&vocabulary, ", \"", before, word, behind, "\": ", id);
  }
  const auto tokenizer = LoadTokenizer(
      {.tokenizer_json = absl::StrCat(
           R"({"model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [],
                         "vocab": {)",
           vocabulary, R"(}},
               "added_tokens": [{"id": 1, "content": "<s>", "special": true, "normalized": false},
                             {"id": 6, "content": "[TURN]", "special": true, "normalized": false}],
               "decoder": )",
           decoder, "}")});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

std::string Answer(const Tokenizer& tokenizer, const std::vector<int>& prompt,
                   const std::vector<int>& answer) {
  const auto decoder = NewDetokenizer(tokenizer, prompt, false, {});
  std::string text;
  for (const int token : answer) text += decoder->Append(token);
  return text + decoder->Flush();
}

TEST(Detokenizer, KeepsALeadingSpaceAfterThePrompt) {
  for (const char* decoder : {kStrip, kMetaspace}) {
    SCOPED_TRACE(decoder);
    const auto tokenizer = With(decoder);
    EXPECT_EQ(Answer(*tokenizer, {kBegin, kIs}, {kParis, kIs}), " Paris is");
    EXPECT_EQ(Answer(*tokenizer, {kIs}, {kComma, kParis}), ", Paris");
    EXPECT_EQ(Answer(*tokenizer, {kIs, kNewline}, {kParis}), " Paris");
    EXPECT_EQ(Answer(*tokenizer, {kIs, kBlank}, {kParis}), " Paris");
    EXPECT_EQ(Answer(*tokenizer, {kIs}, {}), "");
    // As many as are not looked at.
    EXPECT_EQ(Answer(*tokenizer, std::vector<int>(100, kIs), {kParis}), " Paris");
  }
}

// As at the end of most chat prompts.
TEST(Detokenizer, ASpecialTokenStartsANewText) {
  for (const char* decoder : {kStrip, kMetaspace}) {
    SCOPED_TRACE(decoder);
    const auto tokenizer = With(decoder);
    EXPECT_EQ(Answer(*tokenizer, {kBegin}, {kParis, kIs}), "Paris is");
    EXPECT_EQ(Answer(*tokenizer, {kBegin, kIs, kTurn}, {kParis}), "Paris");
    EXPECT_EQ(Answer(*tokenizer, {kBegin, kTurn, kNewline}, {kParis}), " Paris");
    EXPECT_EQ(Answer(*tokenizer, {}, {kParis}), "Paris");
  }
}

TEST(Detokenizer, BytesHeldBackFromThePromptAreNotOutput) {
  const auto tokenizer = With(kStrip);
  const std::vector<int> character = {kE6, kBC, kA2};
  EXPECT_EQ(Answer(*tokenizer, {kIs, kE6, kBC, kA2}, {kParis}), " Paris");
  EXPECT_EQ(Answer(*tokenizer, {kIs, kE6, kBC, kA2}, character), "漢");
  EXPECT_EQ(Answer(*tokenizer, {kE6, kBC, kA2, kE6, kBC, kA2}, character), "漢");
  // A character that starts in the prompt.
  EXPECT_EQ(Answer(*tokenizer, {kIs, kE6, kBC}, {kA2, kParis}), "漢 Paris");
  EXPECT_EQ(Answer(*tokenizer, {kIs, kE6}, {kParis}), " Paris");
  // BPE's decoder holds every last token.
  const auto words = With(R"({"type": "BPEDecoder", "suffix": "</w>"})", "", "</w>");
  EXPECT_EQ(Answer(*words, {kComma, kIs}, {kParis, kComma}), " Paris ,");
  const auto bytes = *ByteTokenizer::Create();
  EXPECT_EQ(Answer(*bytes, {'a', 0xE6}, {0xBC, 0xA2, 'b'}), "漢b");
  EXPECT_EQ(Answer(*bytes, {'a', 0xE6}, {'b'}), "b");
  EXPECT_EQ(Answer(*bytes, {'a', 'b'}, {'c'}), "c");
}

TEST(Detokenizer, RequestsDetokenizeAfterTheirPrompt) {
  const auto tokenizer = With(kStrip);
  Request request(1, {kBegin, kIs}, {.max_tokens = 9, .stop = {" is"}}, *tokenizer);
  request.Admit();
  for (const int token : {kParis, kComma, kIs}) request.Emit(token, 100);
  EXPECT_EQ(request.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(request.TakeText(), " Paris,");
}

}  // namespace
}  // namespace espalier
