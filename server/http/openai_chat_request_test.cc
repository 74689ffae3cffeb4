// Tests how requests of chats are read: messages, tools and the prompt that they make.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/openai_request.h"
#include "server/http/openai_request_fixture.h"

namespace espalier::openai {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(OpenAi, GenerationPromptMayBeDisabled) {
  const auto chat = [](const std::string& fields, Request* request) {
    return Parse(
        Kind::kChat,
        R"({"model": "m", "messages": [{"role": "user", "content": "x"}], )" + fields + "}",
        request);
  };
  Request as_it_is, begun, neutral;
  ASSERT_FALSE(chat(R"("add_generation_prompt": false)", &as_it_is));
  EXPECT_TRUE(as_it_is.generate.chat().no_generation_prompt());
  ASSERT_FALSE(chat(R"("add_generation_prompt": true)", &begun));
  EXPECT_FALSE(begun.generate.chat().no_generation_prompt());
  EXPECT_EQ(chat(R"("add_generation_prompt": true, "continue_final_message": true)", &begun)
                .value()
                .param,
            "add_generation_prompt");
  EXPECT_FALSE(chat(R"("length_penalty": 1.0, "use_beam_search": false)", &neutral));
  EXPECT_EQ(chat(R"("length_penalty": 0.5)", &neutral).value().param, "length_penalty");
}

// OpenAI's clients send these for any model, and the Responses API accepts them.
TEST(OpenAi, ChatsTakeFieldsThatChangeNothing) {
  const auto error_of = [](const std::string& fields) {
    Request request;
    const std::string chat = R"({"model": "m", "messages": [{"role": "user", "content": "x"}], )";
    return Parse(Kind::kChat, chat + fields + "}", &request).value_or(Error{}).param;
  };
  EXPECT_EQ(error_of(R"("prompt_cache_retention": "24h")"), "");
  EXPECT_EQ(error_of(R"("prompt_cache_options": {"mode": "implicit"})"), "");
  EXPECT_EQ(error_of(R"("verbosity": "medium")"), "");
  EXPECT_EQ(error_of(R"("verbosity": null)"), "");
  EXPECT_EQ(error_of(R"("verbosity": "low")"), "verbosity");
}

TEST(OpenAi, RefusalIsReadAsText) {
  const auto parse = [](const std::string& message, Request* request) {
    return Parse(Kind::kChat,
                 absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "x"}, )",
                              message, "]}"),
                 request);
  };
  for (const char* message :
       {R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})",
        R"({"role": "assistant", "content": null, "refusal": "No."})",
        R"({"role": "assistant", "refusal": "No."})",
        R"({"role": "assistant", "content": "No.", "refusal": null})",
        R"({"role": "assistant", "content": "No.", "refusal": ""})"}) {
    Request request;
    const auto error = parse(message, &request);
    ASSERT_FALSE(error) << message << ": " << error->message;
    EXPECT_EQ(request.generate.chat().turns(1).content(), "No.") << message;
  }
  for (const char* message :
       {R"({"role": "user", "content": [{"type": "refusal", "refusal": "No."}]})",
        R"({"role": "user", "content": "x", "refusal": "No."})",
        R"({"role": "assistant", "content": [{"type": "refusal", "text": "No."}]})",
        R"({"role": "assistant", "content": "x", "refusal": ["No."]})",
        R"({"role": "assistant", "content": [{"text": "No."}]})"}) {
    Request request;
    const auto error = parse(message, &request);
    ASSERT_TRUE(error) << message;
    EXPECT_EQ(error->param, "messages");
    EXPECT_THAT(error->message, HasSubstr("messages[1]."));
  }
}

TEST(OpenAi, ChatTakesTextPartsAndNamesBadMessages) {
  Request request;
  ASSERT_FALSE(Parse(Kind::kChat,
                     R"({"model": "m", "messages": [{"role": "user", "content":
                         [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
                         "logprobs": true, "top_logprobs": 4, "max_completion_tokens": 9})",
                     &request));
  EXPECT_EQ(request.generate.chat().turns(0).content(), "ab");
  EXPECT_EQ(request.generate.logprobs(), 4);
  EXPECT_EQ(request.generate.max_tokens(), 9);
  const std::pair<const char*, const char*> cases[] = {
      {R"({"role": "robot", "content": "x"})", "messages[0].role"},
      {R"({"content": "x"})", "messages[0].role"},
      {R"({"role": "user"})", "messages[0].content"},
      {R"({"role": "user", "content": [{"type": "image_url"}]})", "messages[0].content"},
      {R"({"role": "tool", "content": "x"})", "messages[0].tool_call_id"},
      {R"({"role": "user", "content": "x", "tool_calls": [1]})", "messages[0].tool_calls"},
      {R"({"role": "user", "content": "x", "mood": "good"})", "messages[0].mood"},
      {R"(7)", "messages[0]"}};
  for (const auto& [message, word] : cases) {
    const Error error =
        ErrorOf(Kind::kChat, std::string(R"({"model": "m", "messages": [)") + message + "]}");
    EXPECT_THAT(error.message, HasSubstr(word)) << message;
    EXPECT_EQ(error.param, "messages");
  }
  EXPECT_EQ(ErrorOf(Kind::kChat, R"({"model": "m", "messages": []})").param, "messages");
  const std::pair<const char*, const char*> fields[] = {
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("reasoning_effort": "much")", "reasoning_effort"},
      {R"("reasoning_format": "xml")", "reasoning_format"},
      {R"("thinking_token_budget": -1)", "thinking_token_budget"},
      {R"("thinking_token_budget": 1.5)", "thinking_token_budget"},
      {R"("functions": [{}])", "functions"},
      {R"("modalities": ["audio"])", "modalities"},
      {R"("tools": [{}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "paramaters": {}}}])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "function", "function": {"name": "g"}})",
       "tool_choice"}};
  for (const auto& [field, param] : fields) {
    EXPECT_EQ(
        ErrorOf(Kind::kChat,
                absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "x"}], )",
                             field, "}"))
            .param,
        param);
  }
}

constexpr char kToolChat[] = R"({"model": "m", "messages": [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
       "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "done"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}],
    "tool_choice": )";

TEST(OpenAi, ChatAddsSpecialTokensOnlyOnRequest) {
  const auto body = [](const char* more) {
    return absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "x"}])", more,
                        "}");
  };
  const std::pair<const char*, bool> cases[] = {{"", false},
                                                {R"(, "add_special_tokens": false)", false},
                                                {R"(, "add_special_tokens": true)", true}};
  for (const auto& [more, added] : cases) {
    Request request;
    EXPECT_FALSE(Parse(Kind::kChat, body(more), &request)) << more;
    EXPECT_EQ(request.generate.chat().add_special_tokens(), added) << more;
    TokenizeRequest tokenize;
    EXPECT_FALSE(ParseTokenize(body(more), &tokenize)) << more;
    EXPECT_EQ(tokenize.generate.chat().add_special_tokens(), added) << more;
  }
  EXPECT_EQ(ErrorOf(Kind::kChat, body(R"(, "add_special_tokens": 1)")).param, "add_special_tokens");
  // For texts, special tokens are the tokenizer's.
  TokenizeRequest tokenize;
  EXPECT_FALSE(ParseTokenize(R"({"prompt": "x"})", &tokenize));
  EXPECT_FALSE(tokenize.generate.no_special_tokens());
}

TEST(OpenAi, ToolsAndToolChoiceAreRead) {
  const std::pair<const char*, v1::ToolChoice> cases[] = {
      {R"("none")", v1::TOOL_CHOICE_NONE},
      {R"("auto")", v1::TOOL_CHOICE_AUTO},
      {R"("required")", v1::TOOL_CHOICE_REQUIRED},
      {R"({"type": "function", "function": {"name": "f"}})", v1::TOOL_CHOICE_NAMED}};
  for (const auto& [text, choice] : cases) {
    Request request;
    ASSERT_FALSE(Parse(Kind::kChat, absl::StrCat(kToolChat, text, "}"), &request)) << text;
    const v1::ChatPrompt& chat = request.generate.chat();
    ASSERT_EQ(chat.tools_size(), 1);
    EXPECT_EQ(json::parse(chat.tools(0))["function"]["name"], "f");
    EXPECT_EQ(chat.tool_choice(), choice);
    EXPECT_EQ(chat.named_tool(), choice == v1::TOOL_CHOICE_NAMED ? "f" : "");
  }
}

// An answer truncated in its reasoning has no content, and clients send it back unchanged.
TEST(OpenAi, AnAnswerWithoutContentMayComeBack) {
  for (const char* thoughts : {"reasoning_content", "reasoning"}) {
    Request request;
    const auto error = Parse(Kind::kChat,
                             absl::StrCat(R"({"model": "m", "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, ")",
                                          thoughts, R"(": "hm"},
        {"role": "user", "content": "go on"}]})"),
                             &request);
    ASSERT_FALSE(error) << error->message;
    EXPECT_EQ(request.generate.chat().turns(1).content(), "");
    EXPECT_EQ(request.generate.chat().turns(1).reasoning(), "hm");
  }
  EXPECT_EQ(ErrorOf(Kind::kChat, R"({"model": "m", "messages": [
                {"role": "assistant", "content": null}]})")
                .message,
            "messages[0].content must be a string");
}

TEST(OpenAi, ChatsEchoTheContinuedMessage) {
  const auto echo = [](const std::string& role) {
    Request request;
    EXPECT_FALSE(Parse(Kind::kChat,
                       absl::StrCat(R"({"model": "m", "echo": true, "messages": [
        {"role": "user", "content": "x"}, {"role": ")",
                                    role, R"(", "content": "y"}]})"),
                       &request));
    EXPECT_FALSE(request.generate.echo());
    return request.echo;
  };
  EXPECT_EQ(echo("assistant"), "y");
  EXPECT_EQ(echo("user"), "");
}

TEST(OpenAi, TokenizeTakesWhatMakesAChatsPrompt) {
  const auto parse = [](const std::string& fields, TokenizeRequest* request) {
    return ParseTokenize(R"({"messages": [{"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"}], )" +
                             fields + "}",
                         request);
  };
  TokenizeRequest all;
  ASSERT_FALSE(parse(R"("tools": [{"type": "function", "function": {"name": "f"}}],
      "chat_template_kwargs": {"a": 1}, "add_generation_prompt": false, "reasoning_effort": "low",
      "continue_final_message": true)",
                     &all));
  EXPECT_EQ(all.generate.chat().tools_size(), 1);
  EXPECT_EQ(all.generate.chat().template_arguments(), R"({"a":1})");
  EXPECT_TRUE(all.generate.chat().continue_final_message());
  EXPECT_FALSE(all.generate.chat().no_generation_prompt());
  EXPECT_EQ(all.generate.chat().reasoning_effort(), "low");
  TokenizeRequest as_they_are, begun;
  ASSERT_FALSE(parse(R"("add_generation_prompt": false)", &as_they_are));
  EXPECT_TRUE(as_they_are.generate.chat().no_generation_prompt());
  ASSERT_FALSE(parse(R"("add_generation_prompt": true)", &begun));
  EXPECT_FALSE(begun.generate.chat().no_generation_prompt());
  EXPECT_EQ(parse(R"("add_generation_prompt": true, "continue_final_message": true)", &begun)
                .value_or(Error{})
                .param,
            "add_generation_prompt");
}

TEST(OpenAi, ReasoningFieldsRoundTrip) {
  Request request;
  ASSERT_FALSE(Parse(Kind::kChat, R"({"model": "m", "messages": [
      {"role": "user", "content": "x"},
      {"role": "assistant", "content": "y", "reasoning_content": "hm"},
      {"role": "assistant", "content": "z", "reasoning": "so"}],
      "reasoning_effort": "low", "include_reasoning": false, "reasoning_format": "none",
      "thinking_token_budget": 0})",
                     &request));
  const v1::ChatPrompt& chat = request.generate.chat();
  EXPECT_EQ(chat.turns(1).reasoning(), "hm");
  EXPECT_EQ(chat.turns(2).reasoning(), "so");
  EXPECT_EQ(chat.reasoning_effort(), "low");
  ASSERT_TRUE(chat.has_thinking_token_budget());
  EXPECT_EQ(chat.thinking_token_budget(), 0);
  EXPECT_TRUE(chat.reasoning_in_text());
  EXPECT_FALSE(request.include_reasoning);
}

}  // namespace
}  // namespace espalier::openai
