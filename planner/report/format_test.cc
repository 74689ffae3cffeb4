#include "planner/report/format.h"

#include <limits>

#include "gtest/gtest.h"
#include "planner/report/axis.h"
#include "planner/report/markup.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

TEST(TextTest, PrintableKeepsTextAndReplacesTheRest) {
  EXPECT_EQ(Printable("layers.0 × 漢字 😀 é"), "layers.0 × 漢字 😀 é");
  EXPECT_EQ(Printable("a\nb\t\x1B[0m"), "a\uFFFDb\uFFFD\uFFFD[0m");
  EXPECT_EQ(Printable(absl::string_view("\0x", 2)), "\uFFFDx");
  EXPECT_EQ(Printable("\xFF"), "\uFFFD");
  EXPECT_EQ(Printable("\xC2\x85"), "\uFFFD");      // control character of Latin-1
  EXPECT_EQ(Printable("\xE2\x80\xAE"), "\uFFFD");  // right-to-left override
  // Overlong '<', a surrogate, beyond Unicode, truncated: each byte counts.
  EXPECT_EQ(Printable("\xC0\xBC"), "\uFFFD\uFFFD");
  EXPECT_EQ(Printable("\xE0\x80\xBC"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Printable("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Printable("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Printable("\xF0\x9F\x98"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Printable("\xEF\xBF\xBF"), "\uFFFD");  // U+FFFF
}

TEST(TextTest, ShortenedKeepsBothEnds) {
  EXPECT_EQ(Shortened("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(Shortened("abcdefghijk", 10), "abcd…ghijk");
  EXPECT_EQ(Shortened("××××××", 3), "×…×");
  EXPECT_EQ(Shortened("ab", 1), "…");
  EXPECT_EQ(Shortened("漢字漢字漢字", 6), "漢…字");  // two columns each
  for (size_t columns = 1; columns < 20; ++columns) {
    EXPECT_LE(Columns(Shortened("漢a字b漢c字d漢e字f漢g", columns)), columns);
  }
}

TEST(TextTest, PadCountsColumns) {
  EXPECT_EQ(Pad("×4", 4), "×4  ");
  EXPECT_EQ(Pad("漢", 4), "漢  ");
  EXPECT_EQ(Pad("long", 2), "long");
}

TEST(MarkupTest, EscapesWhatEndsTextOrAttributes) {
  EXPECT_EQ(Escaped("<a href=\"x\">'&amp;'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(EscapedShort("<<<<<<", 3), "&lt;…&lt;");  // never cuts an entity
  EXPECT_EQ(Hover("a<\nb\x01"), "<title>a&lt;\nb\uFFFD</title>");
}

TEST(MarkupTest, CoordinatesAreShortAndFinite) {
  EXPECT_EQ(Coordinate(1.5), "1.5");
  EXPECT_EQ(Coordinate(100), "100");
  EXPECT_EQ(Coordinate(-0.001), "0");
  EXPECT_EQ(Coordinate(1.0 / 3), "0.33");
  EXPECT_EQ(Coordinate(std::numeric_limits<double>::quiet_NaN()), "0");
  EXPECT_EQ(Coordinate(std::numeric_limits<double>::infinity()), "0");
  EXPECT_EQ(Coordinate(1e300), "1000000");
}

TEST(FormatTest, NumbersInReadableUnits) {
  EXPECT_EQ(ReadableBytes(0), "0 B");
  EXPECT_EQ(ReadableBytes(1023), "1023 B");
  EXPECT_EQ(ReadableBytes(1.5 * 1024), "1.5 KiB");
  EXPECT_EQ(ReadableBytes(139.8 * 1024 * 1024 * 1024), "139.8 GiB");
  EXPECT_EQ(ReadableBytes(std::numeric_limits<double>::quiet_NaN()), "unknown");
  EXPECT_EQ(SignedBytes(2048), "+2.0 KiB");
  EXPECT_EQ(SignedBytes(-2048), "-2.0 KiB");
  EXPECT_EQ(ReadableSeconds(1.234), "1.23 s");
  EXPECT_EQ(ReadableSeconds(0.01234), "12.34 ms");
  EXPECT_EQ(ReadableSeconds(5e-6), "5.0 us");
  EXPECT_EQ(ReadableSeconds(0), "0 s");
  EXPECT_EQ(SignedSeconds(-5e-3), "-5.00 ms");
  EXPECT_EQ(SignedSeconds(0), "0 s");
  EXPECT_EQ(ReadableCount(0), "0");
  EXPECT_EQ(ReadableCount(999), "999");
  EXPECT_EQ(ReadableCount(1234567), "1,234,567");
  EXPECT_EQ(ReadableCount(-123456), "-123,456");
  EXPECT_EQ(ReadableCount(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(ReadablePercent(0.834), "83 %");
  EXPECT_EQ(ReadablePercent(0.004), "0.4 %");
}

TEST(FormatTest, RangesKeepTheOrder) {
  EXPECT_EQ(NumberRanges({}), "");
  EXPECT_EQ(NumberRanges({0, 1, 2, 5}), "0-2,5");
  EXPECT_EQ(NumberRanges({3, 2, 1}), "3,2,1");
  EXPECT_EQ(NumberRanges({2, 3, 0, 1}), "2-3,0-1");
  EXPECT_EQ(NumberRanges({std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}),
            "2147483647,-2147483648");
}

TEST(FormatTest, LayerNumbersAreFound) {
  EXPECT_EQ(SplitNumber("layers.3.mlp").Pattern(), "layers.*.mlp");
  EXPECT_EQ(SplitNumber("layers.3.mlp").number, 3);
  EXPECT_EQ(SplitNumber("3").Pattern(), "*");
  EXPECT_EQ(SplitNumber("layers.10").Pattern(), "layers.*");
  EXPECT_EQ(SplitNumber("a.0.b.1").Pattern(), "a.*.b.1");
  // Not the same name as "layers.3", so not the same number.
  EXPECT_EQ(SplitNumber("layers.03").number, -1);
  EXPECT_EQ(SplitNumber("layers.1234567").number, -1);
  EXPECT_EQ(SplitNumber("").number, -1);
  EXPECT_EQ(SplitNumber("..").Pattern(), "..");
}

v1::OperatorPlan* Add(const std::string& node, const std::vector<int>& devices, v1::Plan* plan) {
  v1::OperatorPlan* op = plan->add_operators();
  op->set_node(node);
  op->set_op("linear");
  op->mutable_devices()->Assign(devices.begin(), devices.end());
  op->set_predicted_seconds(0.5);
  return op;
}

TEST(FormatTest, LayersThatAreTreatedAlikeShareARow) {
  v1::Plan plan;
  (*Add("layers.2.fc", {0, 1}, &plan)->mutable_degrees())["sample"] = 2;
  (*Add("layers.0.fc", {0, 1}, &plan)->mutable_degrees())["sample"] = 2;
  Add("layers.1.fc", {0, 1}, &plan);
  (*Add("layers.3.fc", {1, 0}, &plan)->mutable_degrees())["sample"] = 2;
  (*Add("layers.1.fc", {0, 1}, &plan)->mutable_degrees())["sample"] = 2;
  Add("a*b.fc", {}, &plan);
  const std::vector<OperatorRow> rows = GroupOperators(plan);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].Name(), "layers.0-2.fc");
  EXPECT_EQ(rows[0].split, "sample×2");
  EXPECT_EQ(rows[0].Devices(), "0-1");
  EXPECT_EQ(rows[0].seconds, 1.5);
  EXPECT_EQ(rows[0].operators, (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(rows[1].Name(), "layers.1.fc");
  EXPECT_EQ(rows[1].split, "whole");
  EXPECT_EQ(rows[2].Devices(), "1,0");
  EXPECT_EQ(rows[3].Name(), "a*b.fc");
}

TEST(FormatTest, KindsAreWords) {
  EXPECT_EQ(KindText(v1::ParallelOperator::ALL_TO_ALL), "all-to-all");
  EXPECT_EQ(KindText(v1::ParallelOperator::EXCHANGE_HALO), "halo exchange");
  EXPECT_EQ(KindText(static_cast<v1::ParallelOperator::Kind>(99)), "kind 99");
  EXPECT_EQ(KindText(static_cast<v1::Device::Kind>(99)), "kind 99");
  v1::ParallelOperator move;
  move.set_kind(v1::ParallelOperator::MOVE);
  EXPECT_EQ(KindAndDegree(move), "move");
}

TEST(AxisTest, StepsAreRound) {
  EXPECT_DOUBLE_EQ(TickStep(1, 10), 0.1);
  EXPECT_DOUBLE_EQ(TickStep(23e-3, 10), 5e-3);
  EXPECT_DOUBLE_EQ(TickStep(0.206, 10), 0.05);
  EXPECT_DOUBLE_EQ(TickStep(-1, 10), 1);
  EXPECT_EQ(ByteTickStep(5, 6), 1);
  EXPECT_EQ(ByteTickStep(1.2 * (1 << 30), 6), 1 << 28);
  for (double limit = 1e-9; limit < 1e18; limit *= 3.7) {
    EXPECT_LE(limit / TickStep(limit, 10), 10.0001);
    EXPECT_GE(limit / TickStep(limit, 10), 3);
  }
}

}  // namespace
}  // namespace espalier
