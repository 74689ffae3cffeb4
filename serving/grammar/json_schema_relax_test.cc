// What of a JSON schema constrains nothing, and is told.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/grammar/grammar_test_util.h"
#include "serving/grammar/json_schema.h"

namespace espalier {
namespace {

// By JSON Schema these constrain nothing. Generators of schemas write them everywhere.
TEST(RelaxJsonSchema, UnknownKeywordsAndFormatsConstrainNothing) {
  struct {
    const char* schema;
    std::vector<const char*> good, bad;
    std::vector<std::string> ignored;
  } cases[] = {
      {R"({"type": "string", "format": "phone", "maxLength": 3})",
       {R"("abc")"},
       {R"("abcd")", "1"},
       {R"(#/format: "phone" is not enforced)"}},
      {R"({"format": "color"})", {R"("x")", "1"}, {}, {R"(#/format: "color" is not enforced)"}},
      {R"({"type": "integer", "format": "int64", "maximum": 9})",
       {"7"},
       {"10", R"("7")"},
       {R"(#/format: "int64" is not enforced)"}},
      {R"({"type": "string", "format": "enum", "enum": ["a", "b"]})",
       {R"("a")"},
       {R"("c")"},
       {R"(#/format: "enum" is not enforced)"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-05")"}, {R"("x")"}, {}},
      {R"({"type": "boolean", "minLength": 3, "x-order": 1, "title": "T", "readOnly": true})",
       {"true"},
       {"3"},
       {"#/minLength: has no effect on type boolean"}},
      {R"({"type": "object", "propertyOrdering": ["a"], "properties": {
           "a": {"type": "null", "maxLenght": 5}, "format": {"type": "integer"}},
           "required": ["a"], "additionalProperties": false})",
       {R"({"a":null})", R"({"a":null,"format":3})"},
       {"{}", R"({"a":null,"format":"x"})"},
       {"#/propertyOrdering: unknown keyword", "#/properties/a/maxLenght: unknown keyword"}},
      // OpenAPI's null, in a merge, too.
      {R"({"type": "string", "nullable": true, "maxLength": 2})",
       {R"("ab")", "null"},
       {R"("abc")", "3"},
       {}},
      {R"({"type": "string", "nullable": true, "enum": ["a", null]})", {R"("a")", "null"}, {}, {}},
      {R"({"type": "string", "nullable": false})", {R"("a")"}, {"null"}, {}},
      {R"({"allOf": [{"type": "string", "nullable": true}, {"type": "string"}]})",
       {R"("a")"},
       {"null"},
       {}},
      {R"({"anyOf": [{"const": 1}], "nullable": true})",
       {"1"},
       {"null"},
       {"#/nullable: null is not allowed, since there is no \"type\" beside it"}},
      // Through a reference to where no schema stands otherwise.
      {R"({"components": {"schemas": {"t": {"type": "integer", "format": "int32",
           "nullable": true}}}, "type": "array", "items": {"$ref": "#/components/schemas/t"}})",
       {"[1,null]"},
       {R"(["a"])"},
       {"#/components: unknown keyword",
        R"(#/components/schemas/t/format: "int32" is not enforced)"}},
      // What looks like a schema in a constant is none.
      {R"({"const": {"type": "integer", "format": "int32", "nullable": true}})",
       {R"({"type":"integer","format":"int32","nullable":true})"},
       {},
       {}},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.schema);
    GrammarMatcher language({.kind = StructuredOutput::kJsonSchema, .text = test.schema});
    ASSERT_TRUE(language.status.ok()) << language.status;
    for (const char* text : test.good) EXPECT_TRUE(language.Accepts(text)) << text;
    for (const char* text : test.bad) EXPECT_FALSE(language.Accepts(text)) << text;
    EXPECT_EQ(UnenforcedKeywords(test.schema), test.ignored);
  }
  std::string many = R"({"type": "null")";
  for (int i = 0; i < 50; ++i) absl::StrAppend(&many, R"(, "key)", i, R"(": 1)");
  const std::vector<std::string> ignored = UnenforcedKeywords(many + "}");
  ASSERT_EQ(ignored.size(), 21u);
  EXPECT_EQ(ignored.back(), "and 30 more");
}

}  // namespace
}  // namespace espalier
