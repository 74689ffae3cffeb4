// Usual large grammars are accepted and cheap. Hostile ones are refused before they cost memory or
// time. Time limits are ten times the usual duration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "serving/grammar/grammar_test_util.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat("value_", i * 7919 % count, "_x"));
  return names;
}

std::string Enum(int count) {
  return absl::StrCat(R"({"enum":[")", absl::StrJoin(Names(count), R"(",")"), R"("]})");
}

TEST(WideGrammars, EnumsOfThousandsOfTextsAreNotAmbiguous) {
  for (const int count : {2100, 20000}) {
    GrammarMatcher language = Schema(Enum(count));
    ASSERT_TRUE(language.status.ok()) << language.status;
    EXPECT_TRUE(language.Accepts(R"("value_0_x")"));
    EXPECT_TRUE(language.Accepts(absl::StrCat("\"value_", count - 1, "_x\"")));
    EXPECT_FALSE(language.Accepts(absl::StrCat("\"value_", count, "_x\"")));
    EXPECT_LT(language.table->work(), 2000);
    GrammarMatcher inside = Schema(absl::StrCat(
        R"({"type":"object","properties":{"a":{"type":"array","items":)", Enum(count), "}}}"));
    EXPECT_TRUE(inside.Accepts(R"({"a":["value_7_x","value_8_x"]})"));
    EXPECT_FALSE(inside.Accepts(R"({"a":["value_7_x","value_8"]})"));
  }
}

TEST(WideGrammars, AlternativesShareCommonPrefixes) {
  const std::vector<std::string> names = Names(2100);
  GrammarMatcher whole = Regex(absl::StrJoin(names, "|"));
  GrammarMatcher group = Regex(absl::StrCat("^(", absl::StrJoin(names, "[0-9]?|"), "){2}$"));
  GrammarMatcher search = Schema(absl::StrCat(R"({"pattern":")", absl::StrJoin(names, "|"), "\"}"));
  GrammarMatcher choice({.kind = StructuredOutput::kChoice, .choices = names});
  GrammarMatcher gbnf = Gbnf(absl::StrCat("root ::= \"", absl::StrJoin(names, "\" | \""), "\""));
  for (GrammarMatcher* language : {&whole, &choice, &gbnf}) {
    EXPECT_TRUE(language->Accepts("value_2099_x"));
    EXPECT_FALSE(language->Accepts("value_2099_xx"));
    EXPECT_FALSE(language->Accepts("value_2100_x"));
    EXPECT_FALSE(language->Accepts("value_"));
  }
  EXPECT_TRUE(group.Accepts("value_1_x3value_2_x"));
  EXPECT_FALSE(group.Accepts("value_1_x3value_2_"));
  EXPECT_TRUE(search.Accepts(R"("so value_77_x it is")"));
  EXPECT_FALSE(search.Accepts(R"("so value_77_")"));
}

TEST(WideGrammars, ObjectsMayHaveManyOptionalProperties) {
  std::string properties;
  for (const std::string& name : Names(2000)) {
    absl::StrAppend(&properties, properties.empty() ? "" : ",", "\"", name, R"(":{"type":"null"})");
  }
  GrammarMatcher language = Schema(absl::StrCat(R"({"properties":{)", properties, "}}"));
  ASSERT_TRUE(language.status.ok()) << language.status;
  EXPECT_TRUE(language.Accepts("{}"));
  EXPECT_TRUE(language.Accepts(R"({"value_0_x":null})"));
  EXPECT_FALSE(language.Accepts(R"({"value_0_x":1})"));
}

// Sanitizers multiply time and memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

std::string Times(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// Resets the peak to the current memory after freed memory is returned. Returns false if the system
// does not support that.
bool ResetPeakMemory() {
  malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

// Peak memory of the process since ResetPeakMemory, in MB.
double PeakMemoryMegabytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && file >> kilobytes) return kilobytes / 1024;
  }
  ADD_FAILURE() << "/proc/self/status says no VmHWM";
  return 0;
}

// CPU time of the process, in seconds.
double ProcessorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Fails if building a grammar, accepted or not, costs more than the limits.
class Cost {
 public:
  Cost(std::string what, double seconds, double megabytes)
      : what_(std::move(what)), seconds_(seconds), megabytes_(megabytes) {
    ResetPeakMemory();
    before_ = PeakMemoryMegabytes();
  }
  ~Cost() {
    if (kSanitized) return;
    EXPECT_LT(ProcessorSeconds() - began_, seconds_) << what_;
    EXPECT_LT(PeakMemoryMegabytes() - before_, megabytes_) << what_;
  }

 private:
  const std::string what_;
  const double seconds_, megabytes_;
  const double began_ = ProcessorSeconds();
  double before_ = 0;
};

class HostileGrammars : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ResetPeakMemory()) {
      GTEST_SKIP() << "/proc/self/clear_refs cannot be written: what a form costs is not known";
    }
  }
};

TEST_F(HostileGrammars, LargePatternsAreRefusedBeforeAllocation) {
  {
    const Cost cost("alternatives", 3, 300);
    Schema(absl::StrCat(R"({"pattern":")", Times(100'000, "|"), "\"}"));
    Regex(Times(1'000'000, "|"));
    Gbnf(absl::StrCat("root ::= ", Times(400'000, "|")));
  }
  {
    const Cost cost("characters", 3, 300);
    const GrammarMatcher dots =
        Schema(absl::StrCat(R"({"pattern":"^)", Times(100'000, "."), "$\"}"));
    EXPECT_THAT(std::string(dots.status.message()), HasSubstr("made of more than"));
    const GrammarMatcher both = Regex(Times(900'000, "."));
    EXPECT_THAT(std::string(both.status.message()), HasSubstr("regex: at byte"));
  }
}

TEST_F(HostileGrammars, ClassesOfManyRangesAreScannedOnce) {
  std::string points;
  for (uint32_t point = 0x10000; point < 0x10000 + 400'000; point += 2) {
    points.push_back(static_cast<char>(0xF0 | point >> 18));
    for (const int shift : {12, 6, 0}) {
      points.push_back(static_cast<char>(0x80 | (point >> shift & 0x3F)));
    }
  }
  const Cost cost("class", 10, 600);
  Schema(absl::StrCat(R"({"type":"string","maxLength":9,"pattern":"^[)", points, R"(]{1,9}$"})"));
}

TEST_F(HostileGrammars, LongNamesAreNotComparedWithThousandsOfPatterns) {
  std::string patterns;
  for (int i = 0; i < 2000; ++i) {
    absl::StrAppend(&patterns, i > 0 ? "," : "", "\"x", i, "\":{}");
  }
  const Cost cost("names", 5, 600);
  const GrammarMatcher language =
      Schema(absl::StrCat(R"({"properties":{")", Times(900'000, "a"),
                          R"(":{}},"patternProperties":{)", patterns, "}}"));
  EXPECT_FALSE(language.status.ok());
}

TEST_F(HostileGrammars, ReferencedBranchesAreNotCopied) {
  std::string properties;
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&properties, i > 0 ? "," : "", "\"p", i, R"(":{"type":"integer"})");
  }
  for (const char* key : {"oneOf", "anyOf"}) {
    for (const char* beside :
         {"", R"("discriminator":{"propertyName":"p0"},)", R"("required":["p1"],)"}) {
      const Cost cost(absl::StrCat(key, beside), 5, 200);
      Schema(absl::StrCat(R"({"$defs":{"a":{"properties":{)", properties, "}}},", beside, "\"", key,
                          R"(":[{"$ref":"#/$defs/a"})", Times(9'000, R"(,{"$ref":"#/$defs/a"})"),
                          "]}"));
    }
  }
}

TEST_F(HostileGrammars, FormatsShareOneBudget) {
  const std::string schema =
      R"({"type":"string","pattern":"^(a|b)*a(a|b){4}$","minLength":12,"maxLength":40})";
  const std::string format = absl::StrCat(R"({"type":"json_schema","json_schema":)", schema, "}");
  const Cost cost("formats", 5, 300);
  EXPECT_TRUE(Schema(schema).status.ok());
  const GrammarMatcher many({.kind = StructuredOutput::kXgrammarStructuralTag,
                             .text = absl::StrCat(R"({"type":"or","elements":[)", format,
                                                  Times(3'000, "," + format), "]}")});
  EXPECT_THAT(std::string(many.status.message()), HasSubstr("made of more than"));
  StructuralTag formed{.layout = StructuralTag::kSingleSection};
  formed.sections = {{.open = "<", .close = ">"}};
  for (int i = 0; i < 1000; ++i) {
    formed.sections[0].items.push_back({.begin = absl::StrCat("i", i), .schema = schema});
  }
  EXPECT_FALSE(GrammarMatcher({.kind = StructuredOutput::kStructuralTag, .structural_tag = formed})
                   .status.ok());
}

TEST_F(HostileGrammars, LongListsAreScannedOnce) {
  std::vector<std::string> numbers, names, types;
  for (int i = 0; i < 80'000; ++i) numbers.push_back(absl::StrCat(i));
  const std::string list = absl::StrCat("[", absl::StrJoin(numbers, ","), "]");
  {
    const Cost cost("enum", 2, 400);
    GrammarMatcher language = Schema(absl::StrCat(R"({"enum":)", list, "}"));
    EXPECT_TRUE(language.Accepts("79999"));
    EXPECT_FALSE(language.Accepts("80000"));
  }
  {
    const Cost cost("two enums", 5, 600);
    Schema(absl::StrCat(R"({"allOf":[{"enum":)", list, R"(},{"enum":)", list, "}]}"));
    Schema(absl::StrCat(R"({"not":{"enum":)", list, R"(},"enum":)", list, "}"));
  }
  {
    const Cost cost("types", 2, 100);
    Schema(absl::StrCat(R"({"type":["null")", Times(30'000, R"(,"null")"), R"(],"enum":[null)",
                        Times(30'000, ",1"), "]}"));
  }
  for (int i = 0; i < 24; ++i) {
    names.push_back(absl::StrCat("\"", std::string(static_cast<size_t>(255), 'a'), i, "\""));
    names.back().erase(1, names.back().size() - 257);
    names.back()[1 + static_cast<size_t>(i)] = 'b';
  }
  {
    const Cost cost("long names", 2, 100);
    GrammarMatcher language =
        Schema(absl::StrCat(R"({"properties":{)", absl::StrJoin(names, ":{},"),
                            R"(:{}},"additionalProperties":{"type":"null"}})"));
    EXPECT_TRUE(language.Accepts(R"({"aab":null})")) << language.status;
  }
  std::string branches;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&branches, i > 0 ? "," : "", R"({"type":"object","properties":{)");
    for (int n = 0; n < 600; ++n)
      absl::StrAppend(&branches, "\"p", n, R"(":{"const":)", i % 39, "},");
    absl::StrAppend(&branches, R"("q":{}},"required":["p0")");
    for (int n = 1; n < 600; ++n) absl::StrAppend(&branches, ",\"p", n, "\"");
    absl::StrAppend(&branches, "]}");
  }
  {
    const Cost cost("exclusive branches", 2, 200);
    EXPECT_THAT(std::string(Schema(absl::StrCat(R"({"oneOf":[)", branches, "]}")).status.message()),
                HasSubstr("overlap"));
  }
}

}  // namespace
}  // namespace espalier
