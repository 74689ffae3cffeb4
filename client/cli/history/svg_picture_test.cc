#include "client/cli/history/svg_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/cli/history/sample_rows.h"
#include "client/cli/history/svg_axis.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> TickTexts(const Axis& axis, int about) {
  std::vector<std::string> texts;
  for (const auto& [value, text] : axis.Ticks(about)) texts.push_back(text);
  return texts;
}

TEST(SvgAxisTest, TicksAreRound) {
  EXPECT_THAT(TickTexts(Axis(0, 100, 0, 1, false), 5),
              ElementsAre("0", "20", "40", "60", "80", "100"));
  EXPECT_THAT(TickTexts(Axis(-0.31, 0.29, 0, 1, false), 5), ElementsAre("-0.2", "0", "0.2"));
  EXPECT_THAT(TickTexts(Axis(1e-9, 3e-9, 0, 1, false), 4),
              ElementsAre("1e-09", "1.5e-09", "2e-09", "2.5e-09", "3e-09"));
}

TEST(SvgAxisTest, WideRangesOfPositiveValuesAreLogarithmic) {
  const Axis axis(0.01, 100, 0, 400, true);
  EXPECT_TRUE(axis.logarithmic());
  EXPECT_NEAR(axis.At(1), 200, 1e-9);
  EXPECT_THAT(TickTexts(axis, 5), ElementsAre("0.01", "0.1", "1", "10", "100"));
  EXPECT_FALSE(Axis(0, 1e9, 0, 1, true).logarithmic());
  EXPECT_FALSE(Axis(1, 999, 0, 1, true).logarithmic());
}

TEST(SvgAxisTest, ExtremeRangesEnd) {
  const double most = std::numeric_limits<double>::max();
  for (const auto& [low, high] : {std::pair<double, double>{-most, most},
                                  {5e-324, 5e-324},
                                  {0, 5e-324},
                                  {0, 0},
                                  {1, std::nextafter(1, 2)},
                                  {5e-324, most}}) {
    const Axis axis(low, high, 0, 100, true);
    EXPECT_LE(axis.Ticks(5).size(), 12u) << low;
    EXPECT_TRUE(axis.At(low) >= -1e-6 && axis.At(low) <= 100) << low << " at " << axis.At(low);
    EXPECT_TRUE(axis.At(high) >= 0 && axis.At(high) <= 100 + 1e-6) << high;
  }
}

HistorySeries Line(const std::string& run, const std::vector<std::pair<double, double>>& points) {
  HistorySeries series;
  series.run = run;
  series.label = "loss";
  series.points = points;
  return series;
}

TEST(SvgPictureTest, NamesAreEscaped) {
  EXPECT_EQ(XmlText("a<b>&\"\x01\n"), "a&lt;b&gt;&amp;&quot;\uFFFD ");
  HistorySeries series = Line("</text><script>@1", {{0, 1}, {1, 2}});
  series.label = "<&>";
  const std::string svg = DrawLines({&series}).svg;
  EXPECT_THAT(svg, AllOf(HasSubstr("&lt;&amp;&gt;"), HasSubstr("&lt;/text&gt;&lt;script&gt;@1"),
                         Not(HasSubstr("<script"))));
}

TEST(SvgPictureTest, NumbersThatAreNotFiniteLeaveGapsAndAreCounted) {
  const HistorySeries series = Line("lm@1", {{0, 1}, {1, NAN}, {2, 2}, {3, 3}, {4, INFINITY}});
  const std::string svg = DrawLines({&series}).svg;
  EXPECT_THAT(svg, HasSubstr("2 values are not finite"));
  const size_t path = svg.find("d=\"M", svg.find("class=\"line\""));
  const std::string drawn = svg.substr(path, svg.find("/>", path) - path);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 'M'), 2) << drawn;
  EXPECT_THAT(drawn, Not(HasSubstr("nan")));
  const HistorySeries none = Line("lm@1", {{0, NAN}});
  EXPECT_EQ(DrawLines({&none}).svg, "");
}

TEST(SvgPictureTest, LongCurvesKeepTheirExtremesAndStaySmall) {
  HistorySeries series = Line("lm@1", {});
  for (int step = 0; step < 200'000; ++step) {
    series.points.emplace_back(step, step == 123'457 ? 50 : std::sin(step));
  }
  const SvgPicture picture = DrawLines({&series});
  EXPECT_LT(picture.svg.size(), 80'000u);
  // The largest value touches the upper end of the axis, which is 6 pixels below the frame.
  EXPECT_THAT(picture.svg, HasSubstr(" 40.0L"));
}

TEST(SvgPictureTest, HistogramsAreDarkWhereTheElementsAre) {
  HistorySeries series;
  series.run = "lm@1";
  series.label = "histogram(w, 2)";
  series.histograms = {{0, HistogramRow(1, 0, "w", -1, 1, {9, 0}).value().histogram()},
                       {1, HistogramRow(1, 1, "w", -1, 1, {0, 9}).value().histogram()}};
  const std::string svg = DrawHeatMap(series).svg;
  // The lower half of the first column and the upper half of the second one, in the darkest shade.
  EXPECT_THAT(svg, HasSubstr("<path fill=\"#081d58\" d=\"M78.00 144.00h320.20v110.20h-320.20z"
                             "M398.00 34.00h320.20v110.20h-320.20z\"/>"));
}

}  // namespace
}  // namespace espalier
