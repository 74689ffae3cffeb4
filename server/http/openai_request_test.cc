#include "server/http/openai_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier::openai {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

Error ErrorOf(Kind kind, const std::string& body) {
  Request request;
  const auto error = Parse(kind, body, &request);
  EXPECT_TRUE(error.has_value()) << body;
  return error.value_or(Error{});
}

TEST(OpenAi, AbsentSamplingStaysAbsentAndZeroIsExplicit) {
  Request request;
  ASSERT_FALSE(Parse(Kind::kCompletion,
                     R"({"model": "m", "prompt": "x", "temperature": 0, "top_k": -1,
                     "top_p": null, "allowed_token_ids": null, "min_tokens": 0})",
                     &request));
  const v1::SamplingOptions& sampling = request.generate.sampling();
  EXPECT_TRUE(sampling.has_temperature());
  EXPECT_EQ(sampling.temperature(), 0);
  EXPECT_TRUE(sampling.has_top_k());
  EXPECT_FALSE(sampling.has_top_p());
  EXPECT_FALSE(sampling.has_min_p());
  EXPECT_FALSE(sampling.has_repetition_penalty());
  EXPECT_TRUE(sampling.has_min_tokens());
  Request silent;
  ASSERT_FALSE(Parse(Kind::kCompletion, R"({"model": "m", "prompt": "x", "seed": -1})", &silent));
  EXPECT_FALSE(silent.generate.sampling().has_min_tokens());
  EXPECT_FALSE(silent.generate.sampling().has_seed());
}

TEST(OpenAi, ReadsAWholeCompletionRequest) {
  Request request;
  const auto error =
      Parse(Kind::kCompletion,
            R"({"model": "m", "prompt": "In the", "max_tokens": 7, "stop": ["a", "b"],
                "temperature": 0, "top_p": 0.5, "top_k": -1, "seed": -3, "stream": true,
                "stream_options": {"include_usage": true}, "n": 2, "logprobs": 3,
                "speculation": false, "user": "x", "min_p": 0.1, "typical_p": 0.9,
                "repetition_penalty": 1.2, "presence_penalty": -1, "frequency_penalty": 0.5,
                "logit_bias": {"5": -100, "7": 3.5}, "stop_token_ids": [9],
                "include_stop_str_in_output": true, "ignore_eos": true, "min_tokens": 2,
                "skip_special_tokens": false, "truncate_prompt_tokens": 50,
                "allowed_token_ids": [1, 2], "bad_words": ["no"], "prompt_logprobs": 1,
                "priority": -4, "timeout": 2.5, "echo": true, "cache_salt": "ours"})",
            &request);
  ASSERT_FALSE(error.has_value()) << error->message;
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_EQ(request.prompts[0].text(), "In the");
  const v1::GenerateRequest& g = request.generate;
  EXPECT_EQ(g.max_tokens(), 7);
  EXPECT_THAT(g.stop(), ElementsAre("a", "b"));
  EXPECT_EQ(g.sampling().temperature(), 0);
  EXPECT_EQ(g.sampling().top_k(), 0);
  EXPECT_TRUE(g.sampling().has_seed());
  EXPECT_EQ(g.sampling().seed(), static_cast<uint64_t>(-3));
  EXPECT_TRUE(request.stream && request.include_usage);
  EXPECT_EQ(g.speculation(), v1::SPECULATION_OFF);
  EXPECT_EQ(g.n(), 2);
  EXPECT_EQ(g.logprobs(), 3);
  EXPECT_EQ(g.sampling().min_p(), 0.1);
  EXPECT_EQ(g.sampling().typical_p(), 0.9);
  EXPECT_EQ(g.sampling().repetition_penalty(), 1.2);
  EXPECT_EQ(g.sampling().presence_penalty(), -1);
  EXPECT_EQ(g.sampling().frequency_penalty(), 0.5);
  EXPECT_EQ(g.sampling().logit_bias().at(7), 3.5f);
  EXPECT_THAT(g.stop_token_ids(), ElementsAre(9));
  EXPECT_TRUE(g.include_stop() && g.ignore_eos() && g.show_special_tokens() && g.echo());
  EXPECT_EQ(g.sampling().min_tokens(), 2);
  EXPECT_EQ(g.truncate_prompt_tokens(), 50);
  EXPECT_THAT(g.sampling().allowed_token_ids(), ElementsAre(1, 2));
  EXPECT_THAT(g.sampling().bad_words(), ElementsAre("no"));
  EXPECT_EQ(g.prompt_logprobs(), 1);
  EXPECT_EQ(g.priority(), -4);
  EXPECT_EQ(g.cache_salt(), "ours");
  EXPECT_EQ(g.timeout_seconds(), 2.5);
}

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

TEST(OpenAi, PromptsComeInFourForms) {
  const struct {
    const char* prompt;
    std::vector<std::string> texts;
    std::vector<std::vector<int>> tokens;
  } cases[] = {{R"("a")", {"a"}, {}},
               {R"(["a", "b"])", {"a", "b"}, {}},
               {R"([1, 2])", {}, {{1, 2}}},
               {R"([[1, 2], [3]])", {}, {{1, 2}, {3}}}};
  for (const auto& test : cases) {
    Request request;
    ASSERT_FALSE(Parse(Kind::kCompletion,
                       std::string(R"({"model": "m", "prompt": )") + test.prompt + "}", &request));
    ASSERT_EQ(request.prompts.size(), test.texts.size() + test.tokens.size());
    for (size_t i = 0; i < test.texts.size(); ++i) {
      EXPECT_EQ(request.prompts[i].text(), test.texts[i]);
    }
    for (size_t i = 0; i < test.tokens.size(); ++i) {
      EXPECT_THAT(request.prompts[i].tokens().ids(), ElementsAreArray(test.tokens[i]));
    }
  }
}

TEST(OpenAi, StructuredOutputHasOneFormOfManySpellings) {
  const auto parse = [](const std::string& fields) {
    Request request;
    const auto error =
        Parse(Kind::kCompletion, R"({"model": "m", "prompt": "x", )" + fields + "}", &request);
    EXPECT_FALSE(error.has_value()) << error->message;
    return request.generate.structured_output();
  };
  EXPECT_TRUE(parse(R"("response_format": {"type": "json_object"})").json_object());
  EXPECT_EQ(parse(R"("response_format": {"type": "text"})").kind_case(),
            v1::StructuredOutput::KIND_NOT_SET);
  for (const char* fields :
       {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
           "schema": {"type": "null"}}})",
        R"("guided_json": {"type": "null"})", R"("guided_json": "{\"type\":\"null\"}")",
        R"("structured_outputs": {"json": {"type": "null"}})"}) {
    EXPECT_EQ(parse(fields).json_schema(), R"({"type":"null"})") << fields;
  }
  for (const char* fields :
       {R"("response_format": {"type": "structural_tag", "triggers": ["<f"], "structures": [
              {"begin": "<f>", "schema": {"type": "null"}, "end": "</f>"}]})",
        R"("structured_outputs": {"structural_tag": "{\"type\": \"structural_tag\", \"triggers\":
              [\"<f\"], \"structures\": [{\"begin\": \"<f>\", \"schema\": {\"type\": \"null\"},
              \"end\": \"</f>\"}]}"})"}) {
    std::string text = fields;
    // JSON strings have no line breaks.
    text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
    const v1::StructuralTag tag = parse(text).structural_tag();
    ASSERT_EQ(tag.structures_size(), 1) << text;
    EXPECT_EQ(tag.structures(0).json_schema(), R"({"type":"null"})");
    EXPECT_THAT(tag.triggers(), ElementsAre("<f"));
  }
  EXPECT_EQ(parse(R"("response_format": {"type": "structural_tag", "format":
                     {"type": "any_text"}})")
                .structural_tag()
                .format(),
            R"({"type":"any_text"})");
  EXPECT_EQ(parse(R"("guided_regex": "a+")").regex(), "a+");
  EXPECT_EQ(parse(R"("structured_outputs": {"regex": "a+"})").regex(), "a+");
  EXPECT_EQ(parse(R"("guided_grammar": "root ::= x")").grammar(), "root ::= x");
  EXPECT_THAT(parse(R"("structured_outputs": {"choice": ["a", "b"]})").choice().texts(),
              ElementsAre("a", "b"));
}

TEST(OpenAi, ErrorsNameTheField) {
  const struct {
    const char* body;
    const char* param;
  } cases[] = {
      {R"({"prompt": "x"})", "model"},
      {R"({"model": 3, "prompt": "x"})", "model"},
      {R"({"model": "m"})", "prompt"},
      {R"({"model": "m", "prompt": ["a", 1]})", "prompt"},
      {R"({"model": "m", "prompt": [[1], "a", {}]})", "prompt"},
      {R"({"model": "m", "prompt": [1, -2]})", "prompt"},
      {R"({"model": "m", "prompt": [1, 99999999999]})", "prompt"},
      {R"({"model": "m", "prompt": "x", "max_tokens": 0})", "max_tokens"},
      {R"({"model": "m", "prompt": "x", "max_tokens": "5"})", "max_tokens"},
      {R"({"model": "m", "prompt": "x", "max_tokens": 18446744073709551615})", "max_tokens"},
      {R"({"model": "m", "prompt": "x", "temperature": -0.1})", "temperature"},
      {R"({"model": "m", "prompt": "x", "top_p": 0})", "top_p"},
      {R"({"model": "m", "prompt": "x", "typical_p": 0})", "typical_p"},
      {R"({"model": "m", "prompt": "x", "max_tokens": 9223372036854775808})", "max_tokens"},
      {R"({"model": "m", "prompt": "x", "seed": 1.5})", "seed"},
      {R"({"model": "m", "prompt": "x", "seed": 9223372036854775808})", "seed"},
      {R"({"model": "m", "prompt": "x", "seed": -9223372036854775809})", "seed"},
      {R"({"model": "m", "prompt": "x", "top_k": -2})", "top_k"},
      {R"({"model": "m", "prompt": "x", "top_k": 4294967296})", "top_k"},
      {R"({"model": "m", "prompt": "x", "stop": [1]})", "stop"},
      {R"({"model": "m", "prompt": "x", "n": 0})", "n"},
      {R"({"model": "m", "prompt": "x", "n": 1000})", "n"},
      {R"({"model": "m", "prompt": "x", "n": 3, "best_of": 2})", "best_of"},
      {R"({"model": "m", "prompt": "x", "best_of": 2, "stream": true})", "best_of"},
      {R"({"model": "m", "prompt": "x", "logprobs": -1})", "logprobs"},
      {R"({"model": "m", "prompt": "x", "logit_bias": {"x": 1}})", "logit_bias"},
      {R"({"model": "m", "prompt": "x", "logit_bias": {"1": 101}})", "logit_bias"},
      {R"({"model": "m", "prompt": "x", "logit_bias": [1]})", "logit_bias"},
      {R"({"model": "m", "prompt": "x", "stop_token_ids": [1.5]})", "stop_token_ids"},
      {R"({"model": "m", "prompt": "x", "bad_words": [1]})", "bad_words"},
      {R"({"model": "m", "prompt": "x", "allowed_token_ids": []})", "allowed_token_ids"},
      {R"({"model": "m", "prompt": "x", "repetition_penalty": 0})", "repetition_penalty"},
      {R"({"model": "m", "prompt": "x", "presence_penalty": 2.5})", "presence_penalty"},
      {R"({"model": "m", "prompt": "x", "suffix": "y"})", "suffix"},
      {R"({"model": "m", "prompt": "x", "use_beam_search": true})", "use_beam_search"},
      {R"({"model": "m", "prompt": "x", "stream_options": {"include_usage": true}})",
       "stream_options"},
      {R"({"model": "m", "prompt": "x", "stream": true, "stream_options": {"usage": true}})",
       "stream_options"},
      {R"({"model": "m", "prompt": "x", "response_format": {"type": "yaml"}})",
       "response_format.type"},
      {R"({"model": "m", "prompt": "x", "response_format": {"type": "json_schema"}})",
       "response_format.json_schema"},
      {R"({"model": "m", "prompt": "x", "response_format": {"type": "structural_tag"}})",
       "response_format.structures"},
      {R"({"model": "m", "prompt": "x", "response_format": {"type": "structural_tag",
          "format": {"type": "any_text"}, "triggers": ["x"]}})",
       "response_format.triggers"},
      {R"({"model": "m", "prompt": "x", "structured_outputs": {"structural_tag": "x"}})",
       "structured_outputs.structural_tag"},
      {R"({"model": "m", "prompt": "x", "guided_regex": "a", "guided_choice": ["b"]})",
       "response_format"},
      {R"({"model": "m", "prompt": "x", "structured_outputs": {"yaml": 1}})",
       "structured_outputs.yaml"},
      {R"({"model": "m", "prompt": "x", "timeout": -1})", "timeout"},
      {R"({"model": "m", "prompt": "x", "cache_salt": ""})", "cache_salt"},
      {R"({"model": "m", "prompt": "x", "cache_salt": 7})", "cache_salt"},
      {R"({"model": "m", "prompt": "x", "stream": "yes"})", "stream"},
      {R"({"model": "m", "prompt": "x", "max_token": 5})", "max_token"},
      {R"({"model": "m", "prompt": "x", "n": 1, "seed": 4, "n": 2})", "n"},
  };
  for (const auto& test : cases) {
    const Error error = ErrorOf(Kind::kCompletion, test.body);
    EXPECT_EQ(error.param, test.param) << test.body;
    EXPECT_EQ(error.http_status, 400);
  }
}

TEST(OpenAi, ManyStopStringsAreRejectedByName) {
  for (const auto& [field, entry] :
       {std::pair{"stop", R"("x")"}, {"bad_words", R"("x")"}, {"stop_token_ids", "1"}}) {
    std::string list = entry;
    for (int i = 1; i < 10000; ++i) absl::StrAppend(&list, ",", entry);
    const Error error =
        ErrorOf(Kind::kCompletion,
                absl::StrCat(R"({"model": "m", "prompt": "x", ")", field, "\": [", list, "]}"));
    EXPECT_EQ(error.param, field);
    EXPECT_EQ(error.http_status, 400);
  }
}

// As many as gRPC accepts; limits on other objects stay small.
TEST(OpenAi, BiasesMayBeAsManyAsTokens) {
  const auto body = [](const char* field, int count) {
    std::string entries;
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&entries, i > 0 ? "," : "", "\"", i, "\":1");
    }
    return absl::StrCat(R"({"model": "m", "prompt": "x", ")", field, "\": {", entries, "}}");
  };
  Request request;
  const auto none = Parse(Kind::kCompletion, body("logit_bias", 65536), &request);
  ASSERT_FALSE(none) << none->message;
  EXPECT_EQ(request.generate.sampling().logit_bias_size(), 65536);
  Request other;
  const auto more = Parse(Kind::kCompletion, body("logit_bias", 65537), &other);
  ASSERT_TRUE(more);
  EXPECT_NE(more->message.find("more than 65536 fields in 'logit_bias'"), std::string::npos);
  EXPECT_TRUE(Parse(Kind::kCompletion, body("metadata", 1025), &other));
}

// A flag takes effect or is rejected, unless it cannot change the answer.
TEST(OpenAi, FlagsThatWouldChangeTheAnswerAreNotLost) {
  const auto error_of = [](const std::string& fields) {
    Request request;
    return Parse(Kind::kCompletion, R"({"model": "m", "prompt": "x", )" + fields + "}", &request)
        .value_or(Error{})
        .param;
  };
  EXPECT_EQ(error_of(R"("store": true)"), "store");
  EXPECT_EQ(error_of(R"("store": false)"), "");
  EXPECT_EQ(error_of(R"("spaces_between_special_tokens": false)"), "");
  EXPECT_EQ(error_of(R"("spaces_between_special_tokens": true, "skip_special_tokens": false)"), "");
  EXPECT_EQ(error_of(R"("spaces_between_special_tokens": false, "skip_special_tokens": false)"),
            "spaces_between_special_tokens");
  for (const char* tier : {"flex", "priority", "", "scale"}) {
    EXPECT_EQ(error_of(absl::StrCat(R"("service_tier": ")", tier, "\"")), "service_tier");
  }
  for (const char* tier : {"auto", "default"}) {
    Request request;
    ASSERT_FALSE(Parse(Kind::kChat,
                       absl::StrCat(R"({"model": "m", "messages": [
        {"role": "user", "content": "x"}], "service_tier": ")",
                                    tier, "\"}"),
                       &request));
    EXPECT_EQ(request.service_tier, "default");
  }
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

TEST(OpenAi, ARequestMayBringItsId) {
  Request request;
  ASSERT_FALSE(Parse(Kind::kCompletion,
                     R"({"model": "m", "prompt": "x", "request_id": "a-7_B.2:c"})", &request));
  EXPECT_EQ(request.id, "a-7_B.2:c");
  ReadRequestIdHeader({{"x-other", "y"}}, &request.id);
  EXPECT_EQ(request.id, "a-7_B.2:c");
  ReadRequestIdHeader({{"x-request-id", std::string(128, 'y')}}, &request.id);
  EXPECT_EQ(request.id, std::string(128, 'y'));
  for (const std::string& id : {std::string(), std::string(129, 'y'), std::string("a b"),
                                std::string("a\r"), std::string("\xc3\xa9"), std::string("a\"")}) {
    ReadRequestIdHeader({{"x-request-id", id}}, &request.id);  // set by a proxy: ignored
    EXPECT_EQ(request.id, std::string(128, 'y'));
    const json body = {{"model", "m"}, {"prompt", "x"}, {"request_id", id}};
    EXPECT_EQ(ErrorOf(Kind::kCompletion, body.dump()).param, "request_id");
  }
}

TEST(OpenAi, MalformedJsonIsAnErrorNotACrash) {
  const std::string deep = R"(, "stop": )" + std::string(100000, '[');
  const std::pair<Kind, const char*> kinds[] = {
      {Kind::kCompletion, R"({"model": "m", "prompt": "x")"},
      {Kind::kChat, R"({"model": "m", "messages": [{"role": "user", "content": "x"}])"}};
  for (const auto& [kind, good] : kinds) {
    Request request;
    EXPECT_FALSE(Parse(kind, absl::StrCat(good, "}"), &request));
    for (const char* body : {"{", "", "[]", "NaN"}) {
      EXPECT_EQ(ErrorOf(kind, body).http_status, 400) << body;
    }
    for (const std::string& more :
         {std::string(""), std::string(R"(, "user": "\ud800"})"),
          std::string(R"(, "user": "\udc00"})"), std::string(R"(, "user": "\udc00\ud800"})"), deep,
          std::string(R"(, "temperature": 1e400})"), std::string(R"(, "temperature": NaN})"),
          deep + std::string(100000, ']') + "}"}) {
      EXPECT_EQ(ErrorOf(kind, good + more).http_status, 400) << more.substr(0, 60);
    }
  }
}

TEST(OpenAi, NumbersAtTheEdgeAreReadAsTheyAre) {
  for (const auto& [text, seed] :
       {std::pair{"9223372036854775807", std::numeric_limits<int64_t>::max()},
        {"-9223372036854775808", std::numeric_limits<int64_t>::min()},
        {"-0", int64_t{0}}}) {
    Request request;
    const auto error = Parse(Kind::kCompletion,
                             absl::StrCat(R"({"model": "m", "prompt": "x", "top_k": -0,
                                 "temperature": -0.0, "seed": )",
                                          text, "}"),
                             &request);
    ASSERT_FALSE(error) << error->message;
    EXPECT_EQ(request.generate.sampling().seed(), static_cast<uint64_t>(seed));
    EXPECT_EQ(request.generate.sampling().top_k(), 0);
    EXPECT_EQ(request.generate.sampling().temperature(), 0);
  }
}

TEST(OpenAi, PromptsOfTooManyTokensAreRefused) {
  std::string tokens = "[1";
  for (int i = 0; i < 4 << 20; ++i) tokens += ",1";
  const Error error =
      ErrorOf(Kind::kCompletion, absl::StrCat(R"({"model": "m", "prompt": )", tokens, "]}"));
  EXPECT_EQ(error.param, "prompt");
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

TEST(OpenAi, PromptsAreTruncatedToALengthOrToTheContext) {
  for (const auto& [value, param] : {std::pair{-2, "truncate_prompt_tokens"},
                                     {0, "truncate_prompt_tokens"},
                                     {-1, ""},
                                     {7, ""}}) {
    Request request;
    const auto error = Parse(
        Kind::kCompletion,
        absl::StrCat(R"({"model": "m", "prompt": "x", "truncate_prompt_tokens": )", value, "}"),
        &request);
    EXPECT_EQ(error.value_or(Error{}).param, param);
    if (param[0] == 0) {
      EXPECT_EQ(request.generate.truncate_prompt_tokens(), value);
    }
  }
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
