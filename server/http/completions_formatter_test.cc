// Choices of one or several prompts, as a stream and as a whole.
#include "server/http/completions_formatter.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::GenerateReply Reply(int index, const std::string& text, const std::string& reason = "") {
  v1::GenerateReply reply;
  reply.set_index(index);
  reply.set_text(text);
  reply.set_finish_reason(reason);
  reply.add_tokens(7);
  return reply;
}

// The last reply of a prompt.
v1::GenerateReply Last(int index, const std::string& text) {
  v1::GenerateReply reply = Reply(index, text, "stop");
  reply.mutable_usage()->set_prompt_tokens(10);
  reply.mutable_usage()->set_completion_tokens(4);
  return reply;
}

Head HeadOf(Kind kind) { return {.kind = kind, .id = "id", .created_unix_seconds = 5}; }

std::vector<json> Chunks(CompletionsFormatter& formatter) {
  std::vector<json> chunks;
  for (const std::string& event : formatter.TakeEvents()) {
    EXPECT_EQ(event.substr(0, 6), "data: ");
    if (event == kDone) continue;
    chunks.push_back(json::parse(event.substr(6)));
  }
  return chunks;
}

// Two prompts with two choices each, whose replies are mixed.
void AddFourChoices(CompletionsFormatter& formatter) {
  formatter.Begin();
  formatter.Add(1, Reply(1, "d"));
  formatter.Add(0, Reply(0, "a"));
  formatter.Add(0, Reply(1, "b", "length"));
  formatter.Add(1, Reply(0, "c", "stop"));
  formatter.Add(0, Last(0, "A"));
  formatter.Add(1, Last(1, "D"));
  formatter.Finish(Last(1, "D"), 0);
}

TEST(CompletionsFormatterTest, ChoicesAreNumberedAcrossPrompts) {
  CompletionsFormatter formatter(HeadOf(Kind::kCompletion), {.prompts = 2, .choices_per_prompt = 2},
                                 false);
  AddFourChoices(formatter);
  EXPECT_TRUE(formatter.over());
  EXPECT_THAT(formatter.TakeEvents(), IsEmpty());
  const json whole = formatter.Object();
  ASSERT_THAT(whole["choices"], SizeIs(4));
  std::vector<std::string> texts;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    texts.push_back(whole["choices"][i]["text"]);
  }
  EXPECT_THAT(texts, ElementsAre("aA", "b", "c", "dD"));
  EXPECT_EQ(whole["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 20);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 8);
}

TEST(CompletionsFormatterTest, StreamHasTheSameChoicesAndEndsWithUsageAndDone) {
  CompletionsFormatter formatter(HeadOf(Kind::kCompletion),
                                 {.prompts = 2, .choices_per_prompt = 2, .include_usage = true},
                                 true);
  AddFourChoices(formatter);
  const std::vector<std::string> events = formatter.TakeEvents();
  ASSERT_THAT(events, SizeIs(8));
  EXPECT_EQ(events.back(), kDone);
  std::vector<std::string> texts(4);
  for (size_t i = 0; i < 6; ++i) {
    const json choice = json::parse(events[i].substr(6))["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
  }
  EXPECT_THAT(texts, ElementsAre("aA", "b", "c", "dD"));
  EXPECT_EQ(json::parse(events[6].substr(6))["usage"]["total_tokens"], 28);
}

TEST(CompletionsFormatterTest, EachChoiceOfAChatBeginsWithRoleAndEcho) {
  CompletionsFormatter formatter(HeadOf(Kind::kChat),
                                 {.choices_per_prompt = 2, .echo_text = "Well, "}, true);
  formatter.Add(0, Reply(0, "a"));
  formatter.Add(0, Reply(1, ""));
  formatter.Add(0, Reply(0, "b"));
  const std::vector<json> chunks = Chunks(formatter);
  ASSERT_THAT(chunks, SizeIs(6));
  std::vector<std::string> deltas;
  for (const json& chunk : chunks) deltas.push_back(chunk["choices"][0]["delta"].dump());
  EXPECT_THAT(deltas, ElementsAre(R"({"role":"assistant","content":""})", R"({"content":"Well, "})",
                                  R"({"content":"a"})", R"({"role":"assistant","content":""})",
                                  R"({"content":"Well, "})", R"({"content":"b"})"));
}

TEST(CompletionsFormatterTest, EveryChunkMayCountWhatHasComeSoFar) {
  CompletionsFormatter formatter(
      HeadOf(Kind::kCompletion),
      {.prompts = 2, .choices_per_prompt = 2, .usage_in_every_chunk = true}, true);
  for (const int prompt : {0, 1}) {
    for (const int index : {0, 1}) {
      v1::GenerateReply reply = Reply(index, "a");
      reply.mutable_prompt_tokens()->Resize(3, 5);  // each choice repeats its prompt's
      formatter.Add(prompt, reply);
    }
  }
  std::vector<std::string> counts;
  for (const json& chunk : Chunks(formatter)) {
    counts.push_back(absl::StrJoin({chunk["usage"]["prompt_tokens"].get<int>(),
                                    chunk["usage"]["completion_tokens"].get<int>()},
                                   "+"));
  }
  EXPECT_THAT(counts, ElementsAre("3+1", "3+2", "6+3", "6+4"));
}

TEST(CompletionsFormatterTest, AnErrorIsTheLastEvent) {
  CompletionsFormatter formatter(HeadOf(Kind::kChat), {}, true);
  formatter.Add(0, Reply(0, "a"));
  formatter.TakeEvents();
  formatter.Fail({.http_status = 503, .message = "a worker is lost"});
  EXPECT_TRUE(formatter.over());
  EXPECT_THAT(formatter.TakeEvents(), ElementsAre(HasSubstr("a worker is lost")));
}

// Only what is shown costs time, and a whole answer costs it at its end.
TEST(CompletionsFormatterTest, ValuesAreCountedWhereTheyAreSerialized) {
  v1::GenerateReply reply = Reply(0, "a");
  for (int i = 0; i < 5; ++i) reply.add_logprobs();
  for (const bool streams : {false, true}) {
    CompletionsFormatter shown(HeadOf(Kind::kCompletion), {.return_token_ids = true}, streams);
    EXPECT_EQ(shown.CountValues(&reply, false), streams ? 6u : 0u);
    EXPECT_EQ(shown.CountValues(&reply, true), streams ? 6u : 12u);
    EXPECT_EQ(shown.CountValues(nullptr, true), 0u);
    CompletionsFormatter hidden(HeadOf(Kind::kCompletion), {}, streams);
    EXPECT_EQ(hidden.CountValues(&reply, true), 5u);
  }
}

}  // namespace
}  // namespace espalier::openai
