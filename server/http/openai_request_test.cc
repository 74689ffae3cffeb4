// Tests how requests of completions are read, and the fields that all requests share.
#include "server/http/openai_request.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/openai_request_fixture.h"

namespace espalier::openai {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

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

TEST(OpenAi, StrictSchemasHoldAsAWhole) {
  for (const char* strict : {"true", "false"}) {
    Request request;
    const auto error = Parse(
        Kind::kCompletion,
        absl::StrCat(R"({"model": "m", "prompt": "x", "response_format": {"type": "json_schema",
            "json_schema": {"name": "n", "strict": )",
                     strict, R"(, "schema": {"type": "string", "format": "phone"}}}})"),
        &request);
    ASSERT_EQ(error.has_value(), *strict == 't');
    if (!error) continue;
    EXPECT_EQ(error->param, "response_format.json_schema.schema");
    EXPECT_THAT(error->message, HasSubstr(R"(#/format: "phone" is not enforced)"));
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
        R"("response_format": {"type": "json_object", "schema": {"type": "null"}})",
        R"("response_format": {"type": "json_schema", "schema": {"type": "null"}})",
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

TEST(OpenAi, ErrorsOfMisspeltFieldsNameTheNearest) {
  const auto message = [](Kind kind, const std::string& fields) {
    return ErrorOf(kind, R"({"model": "m", )" + fields + "}").message;
  };
  using enum Kind;
  EXPECT_EQ(message(kCompletion, R"("prompt": "x", "max_token": 5)"),
            "field 'max_token' is not known; did you mean 'max_tokens'?");
  EXPECT_EQ(message(kCompletion, R"("prompt": "x", "stream_option": {})"),
            "field 'stream_option' is not known; did you mean 'stream_options'?");
  EXPECT_EQ(message(kCompletion, R"("prompt": "x", "zzzzzzzz": 5)"),
            "field 'zzzzzzzz' is not known");
  // Not one that would be refused, too, or does nothing.
  EXPECT_EQ(message(kCompletion, R"("prompt": "x", "use_beam_serch": true)"),
            "field 'use_beam_serch' is not known");
  EXPECT_EQ(message(kChat, R"("messages": [{"role": "user", "contents": "x"}])"),
            "messages[0].content must be a string");
  EXPECT_EQ(message(kChat, R"("messages": [{"role": "user", "content": "x", "nam": "y"}])"),
            "field 'messages[0].nam' is not known; did you mean 'name'?");
  EXPECT_EQ(message(kChat, R"("messages": [{"role": "user", "content": "x"}], "temprature": 1)"),
            "field 'temprature' is not known; did you mean 'temperature'?");
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
      {R"({"model": "m", "prompt": "x", "response_format": {"type": "json_object", "schema": 3}})",
       "response_format.schema"},
      {R"({"model": "m", "prompt": "x", "response_format": {"type": "json_schema",
           "schema": {}, "json_schema": {"schema": {}}}})",
       "response_format.schema"},
      {R"({"model": "m", "prompt": "x", "response_format": {"type": "text", "schema": {}}})",
       "response_format.schema"},
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

}  // namespace
}  // namespace espalier::openai
