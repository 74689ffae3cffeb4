#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "planner/report/format.h"
#include "planner/report/html_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HtmlTest, PageIsWellFormedAndHasEverySection) {
  const std::vector<Element> page = Parsed(Sample().Page());
  for (const char* id :
       {"alternatives", "graph", "changes", "timeline", "links", "memory", "operators"}) {
    EXPECT_FALSE(Section(page, id).text.empty());
  }
}

TEST(HtmlTest, HeadlineSaysWhatWasPlanned) {
  const std::string text = Parsed(Sample().Page())[0].text;
  for (const char* part : {"layered", "batch of 8 on 4 devices", "4 × NVIDIA H200", "CUDA, 1.0 GiB",
                           "100.00 ms", "80 samples per second", "512.0 MiB", "50 % of its 1.0 GiB",
                           "3.0 MiB", "1,000 proposals", "321 accepted", "seed 7"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(HtmlTest, AlternativesSayWhyTheyLostAndByHowMuch) {
  const std::vector<Element> page = Parsed(Sample().Page());
  const std::string text = Section(page, "alternatives").text;
  EXPECT_THAT(text, HasSubstr("1.50×"));
  EXPECT_THAT(text, HasSubstr("slower by 50.00 ms: compute 0 s, communication +50.00 ms"));
  EXPECT_THAT(text, HasSubstr("does not fit: device 0 needs 1.5 GiB, has 1.0 GiB"));
  // Bars: 0.1 s, 0.15 s, 0.2 s.
  std::vector<double> widths;
  for (const Element& e : Inside(page, "class", "bars")) {
    if (e.name == "rect" && e.HasClass("step")) widths.push_back(e.Number("width"));
  }
  ASSERT_EQ(widths.size(), 3u);
  EXPECT_NEAR(widths[1] / widths[0], 1.5, 1e-3);
  EXPECT_NEAR(widths[2] / widths[0], 2.0, 1e-3);
}

TEST(HtmlTest, RefusalWithoutNumbersShowsPlannersText) {
  Sample sample;
  sample.plan.mutable_alternatives(1)->mutable_prediction()->clear_peak_bytes();
  EXPECT_THAT(Section(Parsed(sample.Page()), "alternatives").text,
              HasSubstr("cannot run: device 0 needs 1610612736 bytes but has 1073741824"));
}

TEST(HtmlTest, EveryOperatorOfASmallPlanAppears) {
  const Sample sample;
  const std::vector<Element> page = Parsed(sample.Page());
  const std::string picture = Section(page, "graph").text;
  const std::string table = Section(page, "operators").text;
  for (const v1::OperatorPlan& op : sample.plan.operators()) {
    EXPECT_THAT(picture, HasSubstr(op.node()));
  }
  for (const char* row : {"embed", "layers.0-1.fc", "layers.0-1.act", "loss"}) {
    EXPECT_THAT(table, HasSubstr(row));
  }
  EXPECT_THAT(picture, HasSubstr("linear · out×2"));
  EXPECT_THAT(picture, HasSubstr("on 0-1 · 3.00 ms"));
}

// Node name -> style with its color.
std::map<std::string, std::string> Colors(const std::vector<Element>& page) {
  std::map<std::string, std::string> colors;
  for (const Element& e : Inside(page, "class", "graph")) {
    if (e.HasClass("node")) colors[e.text.substr(0, e.text.find('\n'))] = e.Attribute("style");
  }
  return colors;
}

TEST(HtmlTest, ColorsAreEqualIffMachineViewsAre) {
  Sample sample(20, 4);
  // Many sets of devices; the order of the devices and repetitions do not matter.
  std::map<std::string, std::set<int>> views;
  for (int i = 0; i < sample.plan.operators_size(); ++i) {
    v1::OperatorPlan* op = sample.plan.mutable_operators(i);
    op->clear_devices();
    for (int d = 0; d < 4; ++d) {
      if ((i % 15 + 1) >> d & 1) op->add_devices(d);
    }
    if (i % 2 == 0) {
      std::reverse(op->mutable_devices()->begin(), op->mutable_devices()->end());
      op->add_devices(op->devices(0));
    }
    views[op->node()] = {op->devices().begin(), op->devices().end()};
  }
  const auto colors = Colors(Parsed(sample.Page()));
  ASSERT_EQ(colors.size(), views.size());
  for (const auto& [a, view_a] : views) {
    ASSERT_THAT(colors.at(a), HasSubstr("--h:"));
    for (const auto& [b, view_b] : views) {
      EXPECT_EQ(colors.at(a) == colors.at(b), view_a == view_b) << a << " " << b;
    }
  }
}

TEST(HtmlTest, EdgesSayWhereTheLayoutChanges) {
  const std::vector<Element> page = Parsed(Sample().Page());
  int changed = 0, plain = 0;
  for (const Element& e : Inside(page, "class", "graph")) {
    if (e.name != "path" || !e.HasClass("edge")) continue;
    changed += e.HasClass("change");
    plain += !e.HasClass("change");
    const std::string ends = e.text.substr(0, e.text.find('\n'));
    const bool into_linear = absl::EndsWith(ends, ".fc");
    EXPECT_EQ(e.HasClass("change"), into_linear) << e.text;
    if (e.HasClass("change")) {
      EXPECT_THAT(e.text, HasSubstr("combine ×4 of dimension 0: 1.0 MiB per step"));
    }
  }
  EXPECT_EQ(changed, 2);
  EXPECT_EQ(plain, 3);
  EXPECT_THAT(Section(page, "graph").text, HasSubstr("combine 1.0 MiB"));
  EXPECT_THAT(Section(page, "graph").text, HasSubstr("gradient of layers.1.fc.weight: reduce ×4"));
  EXPECT_THAT(Section(page, "changes").text, HasSubstr("reduce ×424.0 MiB"));  // kind, edges, bytes
}

TEST(HtmlTest, BoxesDoNotOverlapAndStayInThePicture) {
  for (int layers : {1, 5, 30}) {
    const std::vector<Element> page = Parsed(Sample(layers).Page());
    struct Box {
      double x, y, w, h;
    };
    std::vector<Box> boxes;
    double width = 0, height = 0;
    for (const Element& e : page) {
      if (e.name == "svg" && e.HasClass("graph")) {
        width = e.Number("width");
        height = e.Number("height");
      }
      if (e.name == "rect" && e.parent >= 0 && page[e.parent].HasClass("node") &&
          !e.HasClass("behind")) {
        boxes.push_back({e.Number("x"), e.Number("y"), e.Number("width"), e.Number("height")});
      }
    }
    EXPECT_EQ(boxes.size(), static_cast<size_t>(2 * layers + 2));
    for (size_t i = 0; i < boxes.size(); ++i) {
      const Box& a = boxes[i];
      EXPECT_GE(a.x, 0);
      EXPECT_GE(a.y, 0);
      EXPECT_LE(a.x + a.w, width);
      EXPECT_LE(a.y + a.h, height);
      for (size_t j = 0; j < i; ++j) {
        const Box& b = boxes[j];
        EXPECT_TRUE(a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y);
      }
    }
  }
}

TEST(HtmlTest, GanttBarsAreProportionalToTimes) {
  const Sample sample;
  const std::vector<Element> page = Parsed(sample.Page());
  double left = 0, width = 0;
  std::map<std::string, std::vector<Element>> bars;
  for (const Element& e : Inside(page, "class", "lane")) {
    if (e.name != "rect") continue;
    if (e.HasClass("idle")) {
      left = e.Number("x");
      width = e.Number("width");
    } else {
      bars[e.Attribute("class")].push_back(e);
    }
  }
  // 6 operators on 4 devices: 6 ms forward, 12 ms backward, 4 ms, 1 ms.
  const double seconds = sample.timeline.seconds;
  EXPECT_NEAR(seconds, 23e-3, 1e-12);
  EXPECT_EQ(bars["fwd"].size(), 24u);
  EXPECT_EQ(bars["bwd"].size(), 24u);
  EXPECT_EQ(bars["syn"].size(), 4u);
  EXPECT_EQ(bars["upd"].size(), 4u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(bars["fwd"][i].Number("x"), left + width * i * 1e-3 / seconds, 0.01);
    EXPECT_NEAR(bars["fwd"][i].Number("width"), width * 1e-3 / seconds, 0.01);
    EXPECT_NEAR(bars["bwd"][i].Number("x"), left + width * (6e-3 + i * 2e-3) / seconds, 0.01);
    EXPECT_NEAR(bars["bwd"][i].Number("width"), width * 2e-3 / seconds, 0.01);
  }
  EXPECT_NEAR(bars["syn"][0].Number("x"), left + width * 18e-3 / seconds, 0.01);
  EXPECT_NEAR(bars["syn"][0].Number("width"), width * 4e-3 / seconds, 0.01);
  EXPECT_EQ(bars["fwd"][1].text, "layers.0.fc, forward\n1.00 ms, from 1.00 ms to 2.00 ms");
  EXPECT_EQ(bars["syn"][0].text,
            "layers.0.fc.weight, gradient sum\n4.00 ms, from 18.00 ms to 22.00 ms\n1.0 MiB");
}

TEST(HtmlTest, LinksAreSortedByUtilization) {
  Sample sample;
  sample.timeline.links = {
      {"slow", 1e6, 1e9}, {"unknown", 5e6, 0}, {"fast", 11.5e6, 1e9}, {"over", 1e9, 1e9}};
  const std::vector<Element> page = Parsed(sample.Page());
  std::vector<std::string> rows;
  std::vector<double> widths;
  for (const Element& e : Inside(page, "id", "links")) {
    if (e.name == "tr") rows.push_back(e.text);
    if (e.name == "rect" && e.HasClass("used")) widths.push_back(e.Number("width"));
  }
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_THAT(rows[1], HasSubstr("over"));
  EXPECT_THAT(rows[2], HasSubstr("fast"));
  EXPECT_THAT(rows[2], HasSubstr("50 %"));  // 11.5 MB of the 23 MB of 23 ms
  EXPECT_THAT(rows[3], HasSubstr("4.3 %"));
  EXPECT_THAT(rows[4], HasSubstr("unknown"));
  EXPECT_EQ(widths[0], 220);
  EXPECT_NEAR(widths[1], 110, 0.01);
}

TEST(HtmlTest, MemoryPeakIsMarkedWhereItIs) {
  Sample sample;
  sample.timeline.memory[2].bytes[9] = 700 << 20;
  sample.timeline.memory[2].bytes[10] = 699 << 20;
  const double peak_seconds = sample.timeline.memory[2].seconds[9];
  const std::vector<Element> page = Parsed(sample.Page());
  std::vector<Element> peaks, curves;
  double limit_y = -1, zero_y = -1;
  for (const Element& e : Inside(page, "class", "memory")) {
    if (e.name == "circle") peaks.push_back(e);
    if (e.HasClass("curve")) curves.push_back(e);
    if (e.text == "limit 1.0 GiB") limit_y = e.Number("y") + 5;
    if (e.text == "0 MiB" || e.text == "0 GiB") zero_y = e.Number("y") - 4;
  }
  // Devices 0, 1 and 3 are equal; the highest curve is drawn last, over the others.
  ASSERT_EQ(peaks.size(), 2u);
  EXPECT_EQ(curves[0].text, "devices 0-1,3\npeak 6.0 MiB at 5.00 ms");
  EXPECT_EQ(curves[1].text, "device 2\npeak 700.0 MiB at 12.00 ms");
  EXPECT_NEAR(peak_seconds, 12e-3, 1e-9);
  EXPECT_NEAR((zero_y - peaks[1].Number("cy")) / (zero_y - limit_y), 700.0 / 1024, 1e-3);
  EXPECT_NEAR((peaks[1].Number("cx") - 84) / 1050, peak_seconds / sample.timeline.seconds, 1e-4);
  EXPECT_THAT(Section(page, "memory").text, HasSubstr("peak 700.0 MiB"));
}

// Long curves are thinned, but never lose the peak.
TEST(HtmlTest, PeakOfALongCurveIsOnTheLine) {
  Sample sample;
  MemoryCurve curve;
  for (int i = 0; i < 5000; ++i) {
    curve.seconds.push_back(i * 1e-6);
    curve.bytes.push_back(i == 2222 ? 900 : 300);
  }
  sample.timeline.memory = {curve};
  std::string path, peak;
  for (const Element& e : Inside(Parsed(sample.Page()), "class", "memory")) {
    if (e.HasClass("curve")) path = e.Attribute("d");
    if (e.name == "circle") peak = e.Attribute("cy");
  }
  EXPECT_THAT(path, HasSubstr(absl::StrCat("V", peak, "H")));
  EXPECT_LT(path.size(), 10000u);
}

TEST(HtmlTest, DistantLimitDoesNotFlattenCurves) {
  const std::vector<Element> page = Parsed(Sample().Page());
  EXPECT_THAT(Section(page, "memory").text, HasSubstr("limit 1.0 GiB, above this picture"));
  double highest = 1e9;
  for (const Element& e : Inside(page, "class", "memory")) {
    if (e.name == "circle") highest = std::min(highest, e.Number("cy"));
  }
  EXPECT_LT(highest, 80);
}

TEST(HtmlTest, SameInputGivesTheSamePage) {
  Sample a(20, 6);
  for (int i = 0; i < 20; ++i)
    (*a.plan.mutable_operators(3)->mutable_degrees())[absl::StrCat(i)] = i;
  const Sample b = a;
  EXPECT_EQ(a.Page(), b.Page());
}

// Gradient nodes follow the split of their forward node and are not drawn.
TEST(HtmlTest, GradientNodesAreNotDrawn) {
  Sample sample;
  Node gradient;
  gradient.name = "layers.0.fc.gradient";
  gradient.op = "linear_grad";
  gradient.forward = 1;
  gradient.inputs = {0};
  sample.graph.AddNode(gradient);
  EXPECT_THAT(Section(Parsed(sample.Page()), "graph").text, Not(HasSubstr("layers.0.fc.gradient")));
}

TEST(HtmlTest, SummaryIsDrawnWithinItsFrame) {
  const std::vector<Element> page = Parsed(Sample(1, 20).Page());
  EXPECT_EQ(
      std::count_if(page.begin(), page.end(), [](const Element& e) { return e.HasClass("lane"); }),
      16);
  EXPECT_FALSE(Inside(page, "class", "summary").empty());
}

}  // namespace
}  // namespace espalier
