#include "serving/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "serving/tokenizer/byte_tokenizer.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char kReplacement[] = "\xEF\xBF\xBD";

TEST(ByteTokenizer, TextSurvivesTheRoundTrip) {
  const auto tokenizer = *ByteTokenizer::Create();
  const std::string text = "In the beginning, \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n\t\x01";
  const std::vector<int> tokens = tokenizer->Encode(text);
  EXPECT_EQ(tokens.size(), text.size());
  EXPECT_EQ(tokenizer->Decode(tokens), text);
}

TEST(ByteTokenizer, SpecialAndUnknownTokensHaveNoText) {
  const auto tokenizer = *ByteTokenizer::Create(258, {257});
  EXPECT_EQ(tokenizer->Decode({'a', 256, 257, 9999, -1, 'b'}), "ab");
  EXPECT_THAT(tokenizer->eos(), ElementsAre(257));
}

TEST(ByteTokenizer, RefusesSmallVocabulariesAndEosOutOfRange) {
  EXPECT_THAT(std::string(ByteTokenizer::Create(255).status().message()), HasSubstr("255"));
  EXPECT_THAT(std::string(ByteTokenizer::Create(256, {256}).status().message()),
              HasSubstr("eos_token_id 256"));
}

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  const auto tokenizer = *ByteTokenizer::Create();
  const auto decoder = tokenizer->NewStreamDecoder();
  EXPECT_EQ(decoder->Append(0xF0), "");
  EXPECT_EQ(decoder->Append(0x9F), "");
  EXPECT_EQ(decoder->Append(0x98), "");
  EXPECT_EQ(decoder->Append(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder->Append(0xE2), "");
  EXPECT_EQ(decoder->Flush(), kReplacement);
  EXPECT_EQ(decoder->Append('x'), "x");
}

TEST(Utf8Stream, ReplacesMaximalSubparts) {
  const auto all = [](const std::string& bytes) {
    Utf8Stream stream;
    std::string out = stream.Append(bytes);
    return out + stream.Flush();
  };
  const std::string r = kReplacement;
  EXPECT_EQ(all("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(all("\xE0\x80\x80"), r + r + r);          // overlong
  EXPECT_EQ(all("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(all("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(all("\xF0\x9F\x98"
                "a"),
            r + "a");  // cut short
  EXPECT_EQ(all("\xE2\x82\xE2\x82\xAC"), r + "\xE2\x82\xAC");
  EXPECT_EQ(all("\xFF"
                "a\x80"),
            r + "a" + r);
}

TEST(Utf8Stream, RandomBytesGiveTheSameTextHoweverSplit) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bytes;
    for (int i = random() % 24; i > 0; --i) {
      // Mostly lead and continuation bytes.
      bytes.push_back(static_cast<char>(random() % 4 ? 0x80 + random() % 0x80 : random() % 0x80));
    }
    Utf8Stream whole, pieces;
    std::string expected = whole.Append(bytes);
    expected += whole.Flush();
    std::string text;
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = std::min<size_t>(1 + random() % 3, bytes.size() - i);
      const std::string piece = pieces.Append(bytes.substr(i, n));
      EXPECT_TRUE(IsValidUtf8(piece));
      text += piece;
      i += n;
    }
    text += pieces.Flush();
    EXPECT_EQ(text, expected);
    EXPECT_TRUE(IsValidUtf8(text));
  }
}

}  // namespace
}  // namespace espalier
