// Bounds and errors; tests/conformance/chat_templates_test.py compares with Jinja2.
#include "serving/chat_template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serving/chat_template/jinja_template.h"
#include "serving/chat_template/plain_chat_template.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string Error(const std::string& source) {
  const auto parsed = jinja::Template::Parse(source);
  if (!parsed.ok()) return parsed.status().ToString();
  return parsed->Render(nlohmann::ordered_json::object(), {}).status().ToString();
}

std::string Rendered(const std::string& source) {
  return jinja::Template::Parse(source)->Render(nlohmann::ordered_json::object(), {}).value_or("?");
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  for (const std::string source :
       {"{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor "
        "%}",
        "{% set n = namespace(l=[1]) %}{% for i in range(90) %}{% set n.l = [n.l, n.l] %}{% endfor "
        "%}{{ n.l }}",
        "{{ 'x' * 10 ** 12 }}", "{% for i in range(99999) %}{{ '0123456789' * 1000 }}{% endfor %}",
        "{% for c in 'x' * 300000000 %}{% endfor %}", "{{ ('\\n' * 300000000).splitlines() }}",
        "{% set n = namespace(l=(range(99999) | list) * 4) %}{% for i in range(98) %}"
        "{% set n.l = [n.l] %}{% endfor %}{{ n.l | tojson(indent=100) }}",
        "{{ range(99999) | map('string') | map(attribute='0.' * 250000 ~ '0') | list }}"}) {
    EXPECT_THAT(Error(source), HasSubstr("RESOURCE_EXHAUSTED")) << source;
  }
  EXPECT_THAT(Error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("too deep"));
  EXPECT_THAT(Error("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              HasSubstr("too deep"));
  EXPECT_THAT(Error("{{ " + std::string(5000, '-') + "1 }}"), HasSubstr("too deep"));
}

// A bound method holds its value: destroying a long chain of them would overflow the stack.
TEST(ChatTemplate, NestedBoundMethodsCountAsDepth) {
  EXPECT_THAT(Error("{% set n = namespace(f=1) %}{% for i in range(99999) %}"
                    "{% set n.f = {'k': n.f}.items %}{% endfor %}"),
              HasSubstr("too deep"));
  EXPECT_THAT(Error("{% set n = namespace(f=1) %}{% for i in range(99999) %}"
                    "{% set n.f = [n.f].count %}{% endfor %}"),
              HasSubstr("too deep"));
}

// With quadratic searches each of these takes minutes to years.
TEST(ChatTemplate, RepetitiveTextIsSearchedInLinearTime) {
  EXPECT_EQ(Rendered("{{ [] * 10 ** 18 }}{{ '' * 10 ** 18 }}"), "[]");
  const std::string texts =
      "{% set t = 'a' * 4000000 %}{% set n = 'a' * 2000000 ~ 'b' %}{% set m = 'b' ~ 'a' * 2000000 "
      "%}";
  EXPECT_EQ(Rendered(texts + "{{ n in t }} {{ t.find(n) }} {{ t.rfind(m) }} {{ t.count(n) }} "
                             "{{ t.replace(n, '') | length }} {{ t.split(n) | length }} "
                             "{{ t.rsplit(m) | length }} {{ t.rpartition(m)[2] | length }}"),
            "False -1 -1 0 4000000 1 1 4000000");
  EXPECT_EQ(Rendered("{{ 'a--b----c'.rsplit('--', 2) }}{{ 'aaaa'.rsplit('aa') }}"
                     "{{ 'aaa'.rsplit('aa', 1) }}{{ 'abcabc'.rfind('bc') }}"),
            "['a--b', '', 'c']['', '', '']['a', '']4");
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_THAT(Error("a\nb\n{{ raise_exception('just so') }}"), HasSubstr("line 3: just so"));
  EXPECT_THAT(Error("\n{% include 'x' %}"), HasSubstr("line 2: the tag include"));
  EXPECT_THAT(Error("{{ strftime_now('%Y') }}"), HasSubstr("no clock"));
  EXPECT_THAT(Error("{{ x.y }}"), HasSubstr("'x' is undefined"));
}

TEST(ChatTemplate, ChoosesTheTemplateForToolsAndRefusesWithoutAny) {
  TokenizerConfig config;
  EXPECT_EQ((*ChatTemplate::Create(config))->Render({}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  config.special_tokens["bos_token"] = "<s>";
  config.chat_templates = {
      {"default", "{{ bos_token }}{{ messages[0].content }}{{ tools }}{{ mood }}"},
      {"tool_use", "T{{ tools | length }}"}};
  const auto format = *ChatTemplate::Create(config);
  ChatRequest request;
  request.messages = {{{"role", "user"}, {"content", "hi"}}};
  request.variables = {{"mood", "!"}, {"messages", "not these"}};
  EXPECT_EQ(*format->Render(request), "<s>hiNone!");
  request.tools = {{{"type", "function"}}};
  EXPECT_EQ(*format->Render(request), "T1");
  config.chat_templates["default"] = "{% if %}";
  EXPECT_THAT(std::string(ChatTemplate::Create(config).status().message()),
              HasSubstr("template \"default\""));
}

TEST(PlainChatTemplate, WritesALinePerMessageThenTheAssistantPrompt) {
  EXPECT_EQ(*RenderPlainChat({{"system", "Be brief."}, {"user", "Who?"}}),
            "system: Be brief.\nuser: Who?\nassistant:");
  EXPECT_THAT(std::string(RenderPlainChat({{"user", ""}, {"robot", ""}}).status().message()),
              HasSubstr("messages[1].role is \"robot\""));
  EXPECT_FALSE(RenderPlainChat({}).ok());
}

}  // namespace
}  // namespace espalier
