#include "serving/request/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "serving/tokenizer/byte_tokenizer.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kLong = 1000;

class RequestTest : public ::testing::Test {
 protected:
  Request Make(RequestOptions options) {
    Request request(1, {'p', 'q'}, std::move(options), *tokenizer_);
    request.Admit();
    return request;
  }

  std::unique_ptr<ByteTokenizer> tokenizer_ = *ByteTokenizer::Create(257, {256});
};

TEST_F(RequestTest, EndsAtMaxTokens) {
  Request request = Make({.max_tokens = 2});
  EXPECT_EQ(request.phase(), Phase::kPrefilling);
  request.Emit('a', kLong);
  EXPECT_EQ(request.phase(), Phase::kDecoding);
  EXPECT_EQ(request.TakeText(), "a");
  request.Emit('b', kLong);
  EXPECT_EQ(request.finish_reason(), FinishReason::kLength);
  EXPECT_EQ(request.TakeText(), "b");
  EXPECT_THAT(request.TakeTokens(), ElementsAre('a', 'b'));
  EXPECT_EQ(request.usage().prompt_tokens, 2);
  EXPECT_EQ(request.usage().completion_tokens, 2);
}

TEST_F(RequestTest, EndsWhenTheContextIsFull) {
  Request request = Make({.max_tokens = 100});
  request.Emit('a', 4);
  EXPECT_EQ(request.Remaining(4), 1);
  request.Emit('b', 4);
  EXPECT_EQ(request.finish_reason(), FinishReason::kLength);
}

TEST_F(RequestTest, EndsAtEosWhichHasNoText) {
  Request request = Make({});
  request.Emit('a', kLong);
  request.Emit(256, kLong);
  EXPECT_EQ(request.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(request.TakeText(), "a");
  EXPECT_EQ(request.usage().completion_tokens, 2);
}

TEST_F(RequestTest, ContinuesAfterEosWithIgnoreEos) {
  Request request = Make({.max_tokens = 3, .ignore_eos = true});
  for (const int token : {int{'a'}, 256, int{'b'}}) request.Emit(token, kLong);
  EXPECT_EQ(request.finish_reason(), FinishReason::kLength);
  EXPECT_EQ(request.TakeText(), "ab");
}

TEST_F(RequestTest, FindsAStopStringAcrossTokensAndEmitsNoneOfIt) {
  Request request = Make({.stop = {"END"}});
  std::string text;
  for (const char c : std::string("xENyEN")) {
    request.Emit(c, kLong);
    text += request.TakeText();
  }
  EXPECT_EQ(text, "xENy");
  request.Emit('D', kLong);
  EXPECT_EQ(request.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(text + request.TakeText(), "xENy");
}

// Byte tokens become text only when their run ends. A stop string in that text ends the output,
// whatever else would at that token.
TEST_F(RequestTest, AStopStringInFlushedTextIsTheFinishReason) {
  const auto bytes = *LoadTokenizer({.tokenizer_json = R"({
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [],
      "vocab": {"<unk>": 0, "</s>": 1, "a": 2, "<0x62>": 3, "<0x63>": 4, "<0x64>": 5}},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "added_tokens": [{"id": 1, "content": "</s>", "special": true, "normalized": false}]})"},
                                    {1});
  const std::shared_ptr<const LogitsProcessorOptions> late =
      std::make_shared<const LogitsProcessorOptions>(LogitsProcessorOptions{.min_tokens = 6});
  const struct {
    std::vector<int> tokens;
    std::vector<std::string> stop;
    std::shared_ptr<const LogitsProcessorOptions> logits_processor;
    const char* text;
    FinishReason reason;
    std::string cause;
    int token;
  } cases[] = {
      {{2, 3, 4, 5}, {"c"}, nullptr, "ab", FinishReason::kStop, "c", -1},  // max_tokens
      {{2, 3, 4, 1}, {"c"}, nullptr, "ab", FinishReason::kStop, "c", -1},  // end of sequence
      {{2, 3, 4, 5}, {"x"}, nullptr, "abcd", FinishReason::kLength, "", -1},
      {{2, 3, 4, 1}, {"x"}, nullptr, "abc", FinishReason::kStop, "", 1},
      {{2, 3, 4, 5}, {"dx"}, nullptr, "abcd", FinishReason::kLength, "", -1},
      {{2, 3, 4, 5}, {"c"}, late, "abcd", FinishReason::kLength, "", -1},  // the context is full
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    RequestOptions options{.max_tokens = c.logits_processor ? 6 : 4,
                           .stop = c.stop,
                           .logits_processor = c.logits_processor};
    Request request(1, {2}, options, *bytes);
    request.Admit();
    for (const int token : c.tokens) {
      ASSERT_NE(request.phase(), Phase::kFinished);
      request.Emit(token, 5);
    }
    EXPECT_EQ(request.phase(), Phase::kFinished);
    EXPECT_EQ(request.finish_reason(), c.reason);
    EXPECT_EQ(request.TakeText(), c.text);
    EXPECT_EQ(request.stop_cause().text, c.cause);
    EXPECT_EQ(request.stop_cause().token, c.token);
  }
  // A cancelled request flushes the same text, but keeps its reason.
  Request request(1, {2}, {.stop = {"c"}}, *bytes);
  for (const int token : {3, 4}) request.Emit(token, kLong);
  request.Finish(FinishReason::kCancelled);
  EXPECT_EQ(request.finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(request.TakeText(), "b");
}

TEST_F(RequestTest, HeldBackTextIsFlushedAtTheEnd) {
  Request request = Make({.max_tokens = 3, .stop = {"END"}});
  for (const char c : std::string("aEN")) request.Emit(c, kLong);
  EXPECT_EQ(request.finish_reason(), FinishReason::kLength);
  EXPECT_EQ(request.TakeText(), "aEN");
}

TEST_F(RequestTest, FinishesOnce) {
  Request request = Make({});
  EXPECT_TRUE(request.Finish(FinishReason::kCancelled));
  EXPECT_FALSE(request.Finish(FinishReason::kError));
  EXPECT_STREQ(Name(request.finish_reason()), "cancelled");
}

TEST(StopStrings, MatchesAFullTextSearchForAnyChunking) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 5000; ++trial) {
    const auto word = [&](int most) {
      std::string out;
      for (int i = 1 + random() % most; i > 0; --i) out.push_back('a' + random() % 2);
      return out;
    };
    // One stop string: of several that overlap, an earlier one may cut.
    const std::string stop = word(5), text = word(30);
    StopStrings stops({stop});
    std::string out;
    for (const char c : text) out += stops.Append(std::string(1, c));
    out += stops.Flush();
    EXPECT_EQ(out, text.substr(0, text.find(stop))) << stop << " in " << text;
    EXPECT_EQ(stops.stopped(), text.find(stop) != std::string::npos);
  }
}

TEST(StopStrings, TheEarliestOfSeveralWins) {
  StopStrings stops({"xyz", "y"});
  EXPECT_EQ(stops.Append("ax"), "a");
  EXPECT_EQ(stops.Append("y"), "x");
  EXPECT_TRUE(stops.stopped());
}

TEST(ValidateOptions, NamesWhatIsWrong) {
  EXPECT_TRUE(ValidateOptions({}, 257).ok());
  EXPECT_THAT(std::string(ValidateOptions({.max_tokens = 0}, 257).message()),
              HasSubstr("max_tokens"));
  EXPECT_THAT(std::string(ValidateOptions({.stop = {"a", ""}}, 257).message()),
              HasSubstr("stop[1]"));
  EXPECT_THAT(std::string(ValidateOptions({.stop = {"\xFF"}}, 257).message()), HasSubstr("UTF-8"));
  EXPECT_FALSE(ValidateOptions({.stop = std::vector<std::string>(10000, "x")}, 257).ok());
  EXPECT_THAT(std::string(ValidateOptions({.cache_salt = std::string(257, 'x')}, 257).message()),
              HasSubstr("cache_salt has 257 bytes"));
  EXPECT_FALSE(ValidateOptions({.sampling = {.top_p = 2}}, 257).ok());
}

}  // namespace
}  // namespace espalier
