#include "client/cli/history/series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "client/cli/history/row_values.h"
#include "client/cli/history/sample_rows.h"
#include "client/cli/history/table_view.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(RowValuesTest, LabelsAreWhatAskedForThem) {
  EXPECT_EQ(LabelOf(EmptyRow(1, 0, "loss")), "loss");
  EXPECT_EQ(LabelOf(EmptyRow(1, 0, "grad(w)", "full")), "grad(w)");
  EXPECT_EQ(LabelOf(EmptyRow(1, 0, "grad(w)", "norm")), "norm(grad(w))");
  EXPECT_EQ(LabelOf(EmptyRow(1, 0, "relu_1", "histogram(64, -1, 1)")),
            "histogram(relu_1, 64, -1, 1)");
}

TEST(RowValuesTest, QuantilesAreSeriesOfTheirOwn) {
  std::vector<std::string> labels;
  for (const LabelledNumber& number :
       NumbersOf(ElementsRow(1, 0, "w", "quantiles(0.1, 0.5)", {-1, 2}))) {
    labels.push_back(number.label);
  }
  EXPECT_THAT(labels, ElementsAre("quantiles(w, 0.1)", "quantiles(w, 0.5)"));
  const auto top = NumbersOf(ElementsRow(1, 0, "w", "top_k(2)", {9, 8}));
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[1].label, "top_k(w, 2)[1]");
  EXPECT_EQ(top[1].value, 8);
  EXPECT_TRUE(NumbersOf(ElementsRow(1, 0, "w", "sample(17)", std::vector<double>(17))).empty());
}

TEST(SeriesTest, RecordedAndReplayedValuesAreApartAndByStep) {
  SeriesCollector collector;
  v1::HistoryRow replayed = ScalarRow(1, 7, "loss", 0.5);
  replayed.set_source(v1::HistoryRow::REPLAY);
  for (const v1::HistoryRow& row : {ScalarRow(1, 8, "loss", 1), ScalarRow(2, 8, "loss", 2),
                                    ScalarRow(1, 4, "loss", 3), replayed}) {
    collector.Add(row);
  }
  const std::vector<HistorySeries> series = collector.Take();
  ASSERT_EQ(series.size(), 3u);
  EXPECT_THAT(series[0].points, ElementsAre(Pair(4, 3), Pair(8, 1)));
  EXPECT_EQ(series[2].Title(), "lm@1, replay");
  EXPECT_EQ(ByLabel(series).size(), 1u);
}

TEST(HeatMapTest, CountsStayWhereTheyAreWhenRangesDiffer) {
  const v1::Histogram narrow = HistogramRow(1, 10, "w", 0, 1, {1, 3}).value().histogram();
  const v1::Histogram wide = HistogramRow(1, 20, "w", -2, 2, {4, 0, 0, 4}).value().histogram();
  const HeatMap map = MakeHeatMap({{10, narrow}, {20, wide}}, 100, 8);
  EXPECT_EQ(map.columns, 2);
  EXPECT_EQ(map.low, -2);
  EXPECT_EQ(map.high, 2);
  // Rows of 0.5 from -2 on.
  EXPECT_THAT(std::vector<double>(map.shares.begin(), map.shares.begin() + 8),
              ElementsAre(0, 0, 0, 0, 0.25, 0.75, 0, 0));
  EXPECT_THAT(std::vector<double>(map.shares.begin() + 8, map.shares.end()),
              ElementsAre(0.25, 0.25, 0, 0, 0, 0, 0.25, 0.25));
  EXPECT_EQ(map.most, 0.75);
}

TEST(HeatMapTest, SeveralStepsOfAColumnAreAveraged) {
  std::vector<std::pair<int64_t, v1::Histogram>> histograms;
  for (int64_t step = 0; step < 1000; ++step) {
    histograms.emplace_back(
        step, HistogramRow(1, step, "w", -1, 1, {step % 2, 1 - step % 2}).value().histogram());
  }
  const HeatMap map = MakeHeatMap(histograms, 10, 2);
  EXPECT_EQ(map.columns, 10);
  EXPECT_THAT(map.shares, ::testing::Each(0.5));
  EXPECT_EQ(map.last_step, 999);
}

TEST(HeatMapTest, OddHistogramsDoNoHarm) {
  EXPECT_EQ(MakeHeatMap({}, 10, 10).columns, 0);
  EXPECT_EQ(MakeHeatMap({{0, v1::Histogram()}}, 10, 10).columns, 0);
  const v1::Histogram same = HistogramRow(1, 0, "w", 3, 3, {5, 5}).value().histogram();
  const HeatMap map = MakeHeatMap({{0, same}}, 10, 4);
  EXPECT_NEAR(std::accumulate(map.shares.begin(), map.shares.end(), 0.0), 1, 1e-12);
  v1::Histogram none = HistogramRow(1, 0, "w", NAN, NAN, {0}).value().histogram();
  EXPECT_EQ(MakeHeatMap({{0, none}}, 10, 4).columns, 0);
  none = HistogramRow(1, 0, "w", 0, 1, {0}).value().histogram();
  EXPECT_EQ(MakeHeatMap({{0, none}}, 10, 4).most, 0);
}

TEST(HistoryPlotsTest, RunsOfALabelShareAPlotAndHistogramsAreMaps) {
  SeriesCollector collector;
  for (int64_t step = 0; step < 4; ++step) {
    collector.Add(ScalarRow(1, step, "loss", 4.0 - static_cast<double>(step)));
    collector.Add(ScalarRow(2, step, "loss", 4));
    collector.Add(HistogramRow(1, step, "w", -1, 1, {1, step}));
  }
  const Terminal terminal = {.is_tty = true, .color = false, .unicode = false, .width = 30};
  const std::string plots = RenderHistoryPlots(collector.Take(), terminal);
  EXPECT_THAT(plots, HasSubstr("\nloss\n4.0000 |"));
  EXPECT_THAT(plots, HasSubstr("a lm@1  b lm@2\n"));
  EXPECT_THAT(plots, HasSubstr("\nhistogram(w, 2), lm@1, replay\n 1.0000 |"));
  EXPECT_THAT(plots, HasSubstr("-1.0000 |####"));
  EXPECT_THAT(plots, HasSubstr("         0             step 3\n"));
}

}  // namespace
}  // namespace espalier
