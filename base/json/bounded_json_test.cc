// Results equal those of nlohmann's parser; texts beyond a limit are rejected at once.
#include "base/json/bounded_json.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using Sorted = nlohmann::json;
using Ordered = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::string Nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

template <typename Json>
std::string ErrorOf(const std::string& text, const JsonLimits& limits = {}) {
  return std::string(ParseBoundedJson<Json>(text, limits).status().message());
}

TEST(BoundedJsonTest, ValuesAreThoseOfTheUnboundedParser) {
  for (const std::string text :
       {"null", " true ", "-3", "18446744073709551615", "1.5e3", R"("a\u00e9\n")", "[]", "{}",
        R"({"b": [1, {"c": null, "a": []}, [[]]], "a": {"z": {}, "y": "x"}})"}) {
    EXPECT_EQ(*ParseBoundedJson<Sorted>(text), Sorted::parse(text)) << text;
    EXPECT_EQ(ParseBoundedJson<Ordered>(text)->dump(), Ordered::parse(text).dump()) << text;
  }
}

TEST(BoundedJsonTest, InvalidJsonIsRefusedWithItsPlace) {
  for (const std::string text :
       {"", "{", "[1,]", "{} x", "{\"a\": 01}", "nul", "\"\xFF\"", "1e999"}) {
    EXPECT_THAT(ErrorOf<Sorted>(text), HasSubstr("is not valid JSON: ")) << text;
    EXPECT_THAT(ErrorOf<Ordered>(text), HasSubstr("is not valid JSON: ")) << text;
  }
  EXPECT_THAT(ErrorOf<Sorted>("{\n\"a\" 1}"), HasSubstr("line 2, column 5"));
  // What the text has is quoted, and nobody can read a message whose text is not UTF-8.
  const std::string error = ErrorOf<Sorted>("{\"weigh\xFF\": 1}");
  EXPECT_THAT(error, HasSubstr("weigh\\xff"));
  EXPECT_TRUE(std::all_of(error.begin(), error.end(), [](char c) { return c >= ' '; })) << error;
}

TEST(BoundedJsonTest, DepthCountsArraysAndObjects) {
  EXPECT_TRUE(ParseBoundedJson<Ordered>(Nested(256)).ok());
  EXPECT_EQ(ErrorOf<Ordered>(Nested(257)), "nests deeper than 256 levels");
  EXPECT_EQ(ErrorOf<Sorted>(R"({"a": {"b": [0]}})", {.depth = 2}), "nests deeper than 2 levels");
  EXPECT_TRUE(ParseBoundedJson<Sorted>(R"({"a": {"b": 0}})", {.depth = 2}).ok());
  // Nesting that would overflow the stack of code that copies the value.
  EXPECT_EQ(ErrorOf<Ordered>(Nested(1'000'000)), "nests deeper than 256 levels");
  EXPECT_EQ(ErrorOf<Ordered>(std::string(1'000'000, '[')), "nests deeper than 256 levels");
}

TEST(BoundedJsonTest, FieldsAreCountedByObjectAndInAll) {
  const JsonLimits limits = {.fields_of_object = 2, .fields = 4};
  EXPECT_TRUE(ParseBoundedJson<Ordered>(R"([{"a": 1, "b": 2}, {"a": 1, "b": 2}])", limits).ok());
  EXPECT_THAT(ErrorOf<Ordered>(R"({"a": 1, "b": 2, "c": 3})", limits), HasSubstr("more than 2"));
  EXPECT_THAT(ErrorOf<Ordered>(R"([{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}])", limits),
              HasSubstr("or 4 in all"));
}

TEST(BoundedJsonTest, ValuesAreCounted) {
  const JsonLimits limits = {.values = 5};
  EXPECT_TRUE(ParseBoundedJson<Sorted>(R"({"a": [{}, [], 1]})", limits).ok());
  for (const char* text : {R"({"a": [{}, [], 1, 2]})", "[{},{},{},{},{}]", "[[],[],[],[],[]]",
                           R"(["", 1, true, null, 0.5])"}) {
    EXPECT_EQ(ErrorOf<Sorted>(text, limits), "has more than 5 values") << text;
  }
  EXPECT_TRUE(ParseBoundedJson<Sorted>("[1, 2, 3.5, 4]", {.values_but_numbers = 1}).ok());
  EXPECT_EQ(ErrorOf<Sorted>(R"([1, 2, ""])", {.values_but_numbers = 1}),
            "has more than 1 values that are no numbers");
}

TEST(BoundedJsonTest, OneFieldMayHoldAWiderObject) {
  const JsonLimits limits = {
      .fields_of_object = 2, .fields = 4, .wide = "map", .fields_of_wide = 6};
  const std::string map = R"({"1": 0, "2": 0, "3": 0, "4": 0, "5": 0, "6": 0})";
  // Its fields do not count among the others.
  for (const std::string& text : {"{\"map\": " + map + R"(, "x": {"a": 1, "b": 2}})",
                                  R"({"x": {"a": 1, "b": 2}, "map": )" + map + "}"}) {
    EXPECT_TRUE(ParseBoundedJson<Ordered>(text, limits).ok()) << text;
    EXPECT_TRUE(ParseBoundedJson<Sorted>(text, limits).ok()) << text;
  }
  EXPECT_THAT(ErrorOf<Ordered>("{\"map\": {\"0\": 0, " + map.substr(1) + "}", limits),
              HasSubstr("more than 6 fields in 'map'"));
  // Neither fields of that name elsewhere, nor objects inside it.
  for (const std::string& text :
       {R"({"x": {"map": )" + map + "}}", "[{\"map\": " + map + "}]", "{\"map\": [" + map + "]}",
        "{\"map\": {\"1\": " + map + "}}", "{\"x\": " + map + "}", map}) {
    EXPECT_THAT(ErrorOf<Ordered>(text, limits), HasSubstr("more than 2")) << text;
  }
}

TEST(BoundedJsonTest, LastOfDuplicateFieldsCounts) {
  const std::string text = R"({"a": 1, "b": {"x": [1]}, "a": [2], "b": 3})";
  std::string twice;
  EXPECT_EQ(ParseBoundedJson<Ordered>(text, {}, &twice)->dump(), R"({"a":[2],"b":3})");
  EXPECT_EQ(twice, "a");
  twice.clear();
  EXPECT_EQ(ParseBoundedJson<Sorted>(text, {}, &twice)->dump(), R"({"a":[2],"b":3})");
  EXPECT_EQ(twice, "a");
  twice.clear();
  ASSERT_TRUE(ParseBoundedJson<Ordered>(R"([{"a": 1}, {"a": 1}])", {}, &twice).ok());
  EXPECT_EQ(twice, "");
}

// nlohmann's parser with a callback takes hours for this.
TEST(BoundedJsonTest, TimeIsLinearInTheText) {
  std::string objects = "[{}", fields = "{\"a\": 0";
  for (int i = 0; i < 1'000'000; ++i) objects += ",{}";
  for (int i = 0; i < 300'000; ++i) fields += ",\"" + std::to_string(i) + "\": 0";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ParseBoundedJson<Ordered>(objects + "]")->size(), 1'000'001);
  EXPECT_EQ(ParseBoundedJson<Ordered>(fields + "}")->size(), 300'001);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace espalier
