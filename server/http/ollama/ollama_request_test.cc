// Requests of Ollama's API become the engine's; what has no effect here is refused by name.
#include "server/http/ollama/ollama_request.h"

#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier::ollama {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Request Generate(const std::string& fields) {
  Request request;
  const auto error = ParseGenerate(absl::StrCat(R"({"model": "m", )", fields, "}"), &request);
  EXPECT_FALSE(error.has_value()) << fields << ": " << error->message;
  return request;
}

Request Chat(const std::string& messages, const std::string& fields = "") {
  Request request;
  const auto error = ParseChat(
      absl::StrCat(R"({"model": "m", "messages": [)", messages, "]", fields, "}"), &request);
  EXPECT_FALSE(error.has_value()) << messages << ": " << error->message;
  return request;
}

TEST(OllamaRequestTest, OptionsBecomeSampling) {
  const Request request = Generate(
      R"("prompt": "a", "options": {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1,
         "typical_p": 0.8, "seed": 42, "num_predict": 12, "stop": ["x", "y"],
         "repeat_penalty": 1.5, "presence_penalty": 0.25, "frequency_penalty": 0.75,
         "repeat_last_n": -1, "num_ctx": 512, "num_gpu": 1, "num_keep": 5, "mirostat": 0})");
  const v1::SamplingOptions& sampling = request.generate.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5);
  EXPECT_EQ(sampling.top_k(), 7);
  EXPECT_EQ(sampling.top_p(), 0.9);
  EXPECT_EQ(sampling.min_p(), 0.1);
  EXPECT_EQ(sampling.typical_p(), 0.8);
  EXPECT_TRUE(sampling.has_seed());
  EXPECT_EQ(sampling.seed(), 42);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5);
  EXPECT_EQ(sampling.presence_penalty(), 0.25);
  EXPECT_EQ(sampling.frequency_penalty(), 0.75);
  EXPECT_EQ(request.generate.max_tokens(), 12);
  EXPECT_THAT(request.generate.stop(), ElementsAre("x", "y"));
  EXPECT_EQ(request.load.num_ctx, 512);
  EXPECT_TRUE(request.stream);
}

TEST(OllamaRequestTest, AbsentOptionsStayAbsent) {
  const Request request = Generate(R"("prompt": "a", "options": {}, "stream": false)");
  const v1::SamplingOptions& sampling = request.generate.sampling();
  EXPECT_FALSE(sampling.has_temperature() || sampling.has_top_k() || sampling.has_top_p() ||
               sampling.has_repetition_penalty() || sampling.has_seed());
  EXPECT_EQ(request.generate.max_tokens(), 0);
  EXPECT_FALSE(request.load.num_ctx.has_value());
  EXPECT_FALSE(request.stream);
  // Ollama's "no limit" and "to the end of the context".
  for (const char* all : {"-1", "-2", "0"}) {
    EXPECT_EQ(Generate(absl::StrCat(R"("prompt": "a", "options": {"num_predict": )", all, "}"))
                  .generate.max_tokens(),
              0);
  }
}

TEST(OllamaRequestTest, NoWindowMeansNoPenalties) {
  const v1::SamplingOptions off =
      Generate(R"("prompt": "a", "options": {"repeat_penalty": 1.5, "frequency_penalty": 1,
               "repeat_last_n": 0})")
          .generate.sampling();
  EXPECT_EQ(off.repetition_penalty(), 1);
  EXPECT_EQ(off.frequency_penalty(), 0);
}

TEST(OllamaRequestTest, WhatWouldChangeAnswersIsRefusedByName) {
  for (const auto& [fields, name] : {
           std::pair{R"("options": {"mirostat": 1})", "mirostat"},
           {R"("options": {"tfs_z": 0.5})", "tfs_z"},
           {R"("options": {"penalize_newline": false})", "penalize_newline"},
           {R"("options": {"repeat_last_n": 64, "repeat_penalty": 1.1})", "repeat_last_n"},
           {R"("options": {"repeat_last_n": 64})",
            "repeat_last_n"},  // the model may have a penalty
           {R"("options": {"temprature": 1})", "temprature"},
           {R"("options": {"temperature": -1})", "temperature"},
           {R"("options": {"num_predict": "all"})", "num_predict"},
           {R"("options": {"repeat_penalty": 1.1, "repetition_penalty": 1.2})", "repeat_penalty"},
           {R"("options": [])", "options"},
           {R"("images": ["aGk="])", "images"},
           {R"("suffix": "end")", "suffix"},
           {R"("template": "{{ .Prompt }}")", "template"},
           {R"("raw": true, "system": "be brief")", "raw"},
           {R"("raw": true, "context": [1])", "raw"},
           {R"("truncate": true)", "truncate"},
           {R"("shift": true)", "shift"},
           {R"("format": "yaml")", "format"},
           {R"("think": "much")", "think"},
           {R"("keep_alive": "soon")", "keep_alive"},
           {R"("top_logprobs": 3)", "top_logprobs"},
           {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
           {R"("sytem": "x")", "sytem"},
       }) {
    Request request;
    const auto error =
        ParseGenerate(absl::StrCat(R"({"model": "m", "prompt": "a", )", fields, "}"), &request);
    ASSERT_TRUE(error.has_value()) << fields;
    EXPECT_THAT(error->message, HasSubstr(name)) << fields;
  }
}

TEST(OllamaRequestTest, KeepAliveOfZeroUnloads) {
  for (const auto& [value, unloads] : {std::pair{"0", true},
                                       {"\"0s\"", true},
                                       {"\"0\"", true},
                                       {"300", false},
                                       {"-1", false},
                                       {"\"5m\"", false},
                                       {"\"-1m\"", false}}) {
    EXPECT_EQ(Generate(absl::StrCat(R"("keep_alive": )", value)).load.unload, unloads) << value;
  }
  EXPECT_TRUE(Generate(R"("keep_alive": 0)").empty);
  EXPECT_FALSE(Generate(R"("prompt": "a", "keep_alive": 0)").empty);
}

TEST(OllamaRequestTest, Formats) {
  EXPECT_TRUE(
      Generate(R"("prompt": "a", "format": "json")").generate.structured_output().json_object());
  EXPECT_EQ(Generate(R"("prompt": "a", "format": {"type": "integer"})")
                .generate.structured_output()
                .json_schema(),
            R"({"type":"integer"})");
  EXPECT_FALSE(Generate(R"("prompt": "a", "format": "")").generate.has_structured_output());
}

TEST(OllamaRequestTest, ThinkIsASwitchOrALevel) {
  EXPECT_FALSE(Generate(R"("prompt": "a")").think.has_value());
  EXPECT_EQ(Generate(R"("prompt": "a", "think": false)").think, false);
  const Request high = Generate(R"("prompt": "a", "think": "high")");
  EXPECT_EQ(high.think, true);
  EXPECT_EQ(high.think_level, "high");
}

TEST(OllamaRequestTest, ResultsAnswerTheirCalls) {
  const Request request = Chat(R"(
      {"role": "system", "content": "be brief"},
      {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
          {"function": {"name": "rain", "arguments": {"city": "Ur"}}},
          {"function": {"name": "wind", "arguments": {}}},
          {"id": "mine", "function": {"name": "rain", "arguments": {"city": "Uz"}}}]},
      {"role": "tool", "tool_name": "wind", "content": "none"},
      {"role": "tool", "content": "dry"},
      {"role": "tool", "tool_call_id": "mine", "content": "wet"})");
  const auto& turns = request.generate.chat().turns();
  const auto calls = nlohmann::json::parse(turns[1].tool_calls());
  EXPECT_EQ(turns[1].reasoning(), "hm");
  EXPECT_EQ(calls[0]["function"]["arguments"]["city"], "Ur");
  EXPECT_EQ(calls[2]["id"], "mine");
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  EXPECT_EQ(turns[2].tool_call_id(), calls[1]["id"]);
  EXPECT_EQ(turns[3].tool_call_id(), calls[0]["id"]);
  EXPECT_EQ(turns[4].tool_call_id(), "mine");
  EXPECT_FALSE(request.generate.chat().continue_final_message());
}

TEST(OllamaRequestTest, LastMessageOfTheAssistantIsContinued) {
  EXPECT_TRUE(Chat(R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})")
                  .generate.chat()
                  .continue_final_message());
  EXPECT_TRUE(Chat("").empty);
}

TEST(OllamaRequestTest, MalformedMessagesAndToolsAreRefused) {
  for (const auto& [body, name] : {
           std::pair{R"("messages": {})", "messages"},
           {R"("messages": [{"role": "robot", "content": ""}])", "messages[0].role"},
           {R"("messages": [{"role": "user", "content": ["a"]}])", "messages[0].content"},
           {R"("messages": [{"role": "user", "content": "a", "images": ["x"]}])", "images"},
           {R"("messages": [{"role": "user", "content": "a", "tool_name": "x"}])", "tool_name"},
           {R"("messages": [{"role": "user", "content": "a", "thinking": "x"}])", "thinking"},
           {R"("messages": [{"role": "assistant", "content": "", "tool_calls":
               [{"function": {"name": "f", "arguments": "{}"}}]}])",
            "arguments"},
           {R"("messages": [], "tools": [{"type": "search"}])", "tools[0]"},
           {R"("messages": [], "tools": [{"function": {"description": "x"}}])", "name"},
           {R"("messages": [], "tool_choice": "auto")", "tool_choice"},
       }) {
    Request request;
    const auto error = ParseChat(absl::StrCat(R"({"model": "m", )", body, "}"), &request);
    ASSERT_TRUE(error.has_value()) << body;
    EXPECT_THAT(error->message, HasSubstr(name)) << body;
  }
}

TEST(OllamaRequestTest, ToolsMayLeaveOutTheirType) {
  const Request request =
      Chat(R"({"role": "user", "content": "a"})",
           R"(, "tools": [{"function": {"name": "rain", "parameters": {"type": "object"}}}])");
  const auto tool = nlohmann::json::parse(request.generate.chat().tools(0));
  EXPECT_EQ(tool["type"], "function");
  EXPECT_EQ(tool["function"]["name"], "rain");
}

TEST(OllamaRequestTest, Embeddings) {
  EmbedRequest one, many, old;
  EXPECT_FALSE(ParseEmbed(R"({"model": "m", "input": "a", "dimensions": 8})", &one));
  EXPECT_EQ(one.embed.inputs(0).text(), "a");
  EXPECT_EQ(one.embed.dimensions(), 8);
  EXPECT_FALSE(one.embed.truncate());
  EXPECT_FALSE(ParseEmbed(R"({"model": "m", "input": ["a", "b"], "truncate": true})", &many));
  EXPECT_EQ(many.embed.inputs_size(), 2);
  EXPECT_TRUE(many.embed.truncate());
  EXPECT_FALSE(ParseEmbeddings(R"({"model": "m", "prompt": "a"})", &old));
  EXPECT_TRUE(old.embed.no_normalization());
  for (const char* body : {R"({"model": "m"})", R"({"model": "m", "input": [1]})",
                           R"({"model": "m", "input": "a", "options": {"mirostat": 2}})"}) {
    EXPECT_TRUE(ParseEmbed(body, &one)) << body;
  }
}

TEST(OllamaRequestTest, ShowTakesTheOlderNameOfModel) {
  std::string model;
  EXPECT_FALSE(ParseShow(R"({"name": "a"})", &model));
  EXPECT_EQ(model, "a");
  EXPECT_FALSE(ParseShow(R"({"model": "b", "verbose": true})", &model));
  EXPECT_EQ(model, "b");
  EXPECT_TRUE(ParseShow("{}", &model));
}

}  // namespace
}  // namespace espalier::ollama
