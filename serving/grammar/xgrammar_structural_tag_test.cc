#include "serving/grammar/xgrammar_structural_tag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "serving/grammar/grammar_test_util.h"

namespace espalier {
namespace {

using testing::HasSubstr;

GrammarMatcher Tag(const std::string& format) {
  return GrammarMatcher({.kind = StructuredOutput::kXgrammarStructuralTag, .text = format});
}

TEST(XgrammarStructuralTag, EachFormatAcceptsExactlyItsTexts) {
  const std::string number = R"({"type": "json_schema", "json_schema": {"type": "integer"}})";
  const std::string item =
      R"({"type": "tag", "begin": "<i>", "end": "</i>", "content": )" + number + "}";
  const struct {
    std::string format;
    std::vector<std::string> good, bad;
  } cases[] = {
      {R"({"type": "const_string", "value": "a\"b"})", {"a\"b"}, {"", "a", "a\"bc"}},
      {number, {"0", "-12"}, {"", "1.5", "x"}},
      {R"({"type": "json_schema", "style": "json", "json_schema": true})", {"[1]"}, {"x"}},
      {R"({"type": "grammar", "grammar": "root ::= json-a [xy]+\njson-a ::= \"a\""})",
       {"ax", "ayx"},
       {"a", "x"}},
      {R"({"type": "regex", "pattern": "[A-Z]{3}-[0-9]+"})", {"ABC-1"}, {"ABC-", "ABCD-1"}},
      {R"({"type": "any_text"})", {"", "any thing\n\u00e9"}, {}},
      {R"({"type": "any_text", "excludes": ["ab", "c"]})", {"", "a b", "aa"}, {"ab", "xaby", "c"}},
      {R"({"type": "any_text", "max_chars": 3})", {"", "\u00e9\u00e9\u00e9"}, {"abcd"}},
      {R"({"type": "any_text", "max_chars": 3, "excludes": ["x"]})", {"abc"}, {"abcd", "ax"}},
      {R"({"type": "any_text", "max_chars": null})", {"abcd"}, {}},
      {R"({"type": "sequence", "elements": [{"type": "const_string", "value": "n="}, )" + number +
           "]}",
       {"n=1"},
       {"n=", "1", "n=1n=1"}},
      {R"({"type": "or", "elements": [{"type": "const_string", "value": "no"}, )" + number + "]}",
       {"no", "7"},
       {"", "no7"}},
      {R"({"type": "optional", "content": )" + number + "}", {"", "7"}, {"x"}},
      {R"({"type": "plus", "content": )" + item + "}",
       {"<i>1</i>", "<i>1</i><i>2</i>"},
       {"", "<i></i>"}},
      {R"({"type": "star", "content": )" + item + "}", {"", "<i>1</i><i>2</i>"}, {"<i>1"}},
      {R"({"type": "repeat", "min": 2, "max": 3, "content": {"type": "const_string", "value": "x"}})",
       {"xx", "xxx"},
       {"", "x", "xxxx"}},
      {R"({"type": "repeat", "min": 1, "max": -1, "content": {"type": "const_string", "value": "x"}})",
       {"x", "xxxxxx"},
       {""}},
      {R"({"type": "tag", "begin": "<", "end": [">", "/"], "content": )" + number + "}",
       {"<1>", "<1/"},
       {"1", "<1", "<1>/"}},
  };
  for (const auto& c : cases) {
    GrammarMatcher language = Tag(c.format);
    ASSERT_TRUE(language.status.ok()) << c.format << ": " << language.status;
    for (const std::string& text : c.good) EXPECT_TRUE(language.Accepts(text)) << c.format << text;
    for (const std::string& text : c.bad) EXPECT_FALSE(language.Accepts(text)) << c.format << text;
  }
}

TEST(XgrammarStructuralTag, FreeTextEndsWithTheEnclosingTag) {
  GrammarMatcher thought = Tag(R"({"type": "tag", "begin": "<think>", "end": ["</think>", "</t>"],
                             "content": {"type": "any_text"}})");
  EXPECT_TRUE(thought.Accepts("<think>hm < 3 </thin </think>"));
  EXPECT_TRUE(thought.Accepts("<think></t>"));
  EXPECT_FALSE(thought.Accepts("<think>a</think>b</think>"));
  EXPECT_FALSE(thought.Accepts("<think>a</t>b</think>"));
  // Text without an end of its own ends with the enclosing tag.
  GrammarMatcher open = Tag(R"({"type": "tag", "begin": "<a>", "end": "</a>", "content":
                          {"type": "tag", "begin": ":", "end": "", "content": {"type": "any_text"}}})");
  EXPECT_TRUE(open.Accepts("<a>:x</a>"));
  EXPECT_FALSE(open.Accepts("<a>:x</a>y</a>"));
  // Only the inner tag ends the text of the inner tag.
  GrammarMatcher inner = Tag(R"({"type": "tag", "begin": "<a>", "end": "</a>", "content":
                           {"type": "tag", "begin": "<b>", "end": "</b>", "content": {"type": "any_text"}}})");
  EXPECT_TRUE(inner.Accepts("<a><b>x</a></b></a>"));
}

// Free text around, at least one tag, at most one.
std::string Triggered(const std::string& more) {
  const auto tag = [](const std::string& name) {
    return R"({"type": "tag", "begin": "<f=)" + name + R"(>", "end": "</f>", "content":
              {"type": "json_schema", "json_schema": {"type": "integer"}}})";
  };
  return R"({"type": "triggered_tags", "triggers": ["<f="], "tags": [)" + tag("a") + "," +
         tag("b") + "]" + more + "}";
}

TEST(XgrammarStructuralTag, TriggersBeginTags) {
  const struct {
    std::string more;
    bool none, one, two, text_before, text_behind;
  } cases[] = {
      {"", true, true, true, true, true},
      {R"(, "at_least_one": true)", false, true, true, false, true},
      {R"(, "stop_after_first": true)", true, true, false, true, false},
      {R"(, "at_least_one": true, "stop_after_first": true)", false, true, false, false, false},
  };
  const std::string a = "<f=a>1</f>", b = "<f=b>-2</f>";
  for (const auto& c : cases) {
    GrammarMatcher language = Tag(Triggered(c.more));
    ASSERT_TRUE(language.status.ok()) << language.status;
    EXPECT_EQ(language.Accepts("no call <f"), c.none) << c.more;
    EXPECT_EQ(language.Accepts(a), c.one) << c.more;
    EXPECT_EQ(language.Accepts(b + a), c.two) << c.more;
    EXPECT_EQ(language.Accepts("now " + a), c.text_before) << c.more;
    EXPECT_EQ(language.Accepts(a + " done"), c.text_behind) << c.more;
    for (const char* bad : {"<f=c>1</f>", "<f=a>x</f>", "text <f=", "<f=a>1"}) {
      EXPECT_FALSE(language.Accepts(bad)) << c.more << bad;
    }
  }
  GrammarMatcher without = Tag(Triggered(R"(, "excludes": ["secret"])"));
  EXPECT_TRUE(without.Accepts("a " + a + " b"));
  EXPECT_FALSE(without.Accepts("a " + a + " secret"));
}

TEST(XgrammarStructuralTag, TagsWithSeparatorAllowNoFreeText) {
  const std::string begin = R"({"type": "tags_with_separator", "separator": ", ", "tags": [
      {"type": "tag", "begin": "<", "end": ">", "content": {"type": "any_text"}}])";
  GrammarMatcher any = Tag(begin + "}");
  GrammarMatcher some = Tag(begin + R"(, "at_least_one": true})");
  GrammarMatcher one = Tag(begin + R"(, "stop_after_first": true})");
  for (GrammarMatcher* language : {&any, &some, &one}) {
    EXPECT_EQ(language->Accepts(""), language != &some);
    EXPECT_TRUE(language->Accepts("<a>"));
    EXPECT_EQ(language->Accepts("<a>, <b>, <>"), language != &one);
    for (const char* bad : {"<a><b>", "<a>, ", ", <a>", "x<a>"})
      EXPECT_FALSE(language->Accepts(bad)) << bad;
  }
}

// Equal to the older notation of structural tags.
TEST(XgrammarStructuralTag, TriggeredTagsEqualLegacyStructures) {
  StructuredOutput older{.kind = StructuredOutput::kStructuralTag};
  for (const char* name : {"a", "b"}) {
    older.structural_tag.sections.push_back(
        {.open = std::string("<f=") + name + ">",
         .items = {{.schema = R"({"type": "integer"})", .end = "</f>"}}});
  }
  older.structural_tag.triggers = {"<f="};
  GrammarMatcher structures(older), format = Tag(Triggered(""));
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const std::string from_structures = structures.Random(random);
    EXPECT_TRUE(format.Accepts(from_structures)) << from_structures;
    const std::string from_format = format.Random(random);
    EXPECT_TRUE(structures.Accepts(from_format)) << from_format;
  }
}

TEST(XgrammarStructuralTag, ErrorsNameThePlace) {
  std::string many = R"({"type": "any_text"})";
  for (int i = 0; i < 5000; ++i) many += R"(, {"type": "any_text"})";
  const struct {
    std::string format, message;
  } cases[] = {
      {"[", "is not valid JSON"},
      {"[]", "format: it must be an object"},
      {R"({})", "format: it must have a field 'type'"},
      {R"({"type": 3})", "field 'type' must be a string"},
      {R"({"type": "token", "token": 3})",
       "type 'token' is not supported; the types are const_string, "},
      {R"({"type": "any_text", "max_tokens": 3})",
       "field 'max_tokens' of a format of type 'any_text'"},
      {R"({"type": "any_text", "max_chars": -1})", "'max_chars' must be a whole number from 0"},
      {R"({"type": "any_text", "excludes": [""]})", "'excludes' must be a list of strings of 1 to"},
      {R"({"type": "any_text", "max_chars": 90000, "excludes": ["a"]})", "format: "},
      {R"({"type": "or", "elements": []})", "'elements' must be a list of at least one format"},
      {R"({"type": "star", "content": {"type": "sequence", "elements": [{"type": "any_text"}, 1]}})",
       "format.content.elements[1]: it must be an object"},
      {R"({"type": "repeat", "min": 3, "max": 2, "content": {"type": "any_text"}})",
       "'max' is less"},
      {R"({"type": "json_schema", "style": "qwen_xml", "json_schema": {}})", "'json' alone"},
      {R"({"type": "optional", "content": {"type": "json_schema", "json_schema": {"type": "text"}}})",
       "format.content: json_schema: #/type"},
      {R"({"type": "grammar", "grammar": "root = x"})", "format: "},
      {R"({"type": "regex", "pattern": "("})", "format: "},
      {R"({"type": "tag", "begin": "", "end": [], "content": {"type": "any_text"}})",
       "'end' is an empty"},
      {R"({"type": "tags_with_separator", "separator": "", "tags": [{"type": "any_text"}]})",
       "format.tags[0]: it must be a format of type 'tag'"},
      {R"({"type": "triggered_tags", "triggers": ["<"], "tags": [
           {"type": "tag", "begin": ">", "end": "", "content": {"type": "any_text"}}]})",
       "format.tags[0]: it begins with '>', which no trigger does"},
      {R"({"type": "triggered_tags", "triggers": ["<"], "tags": [{"type": "tag", "begin": 1}]})",
       "format.tags[0]: field 'begin' must be a string"},
      {R"({"type": "or", "elements": [)" + many + "]}", "more than 4096 formats"},
  };
  for (const auto& c : cases) {
    GrammarBudget budget;
    const absl::Status status = ParseXgrammarStructuralTag(c.format, &budget).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.format.substr(0, 200);
    EXPECT_THAT(std::string(status.message()), HasSubstr("structural tag: "))
        << c.format.substr(0, 200);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.format.substr(0, 200);
  }
}

}  // namespace
}  // namespace espalier
