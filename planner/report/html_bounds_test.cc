// Pages of plans that are large, empty, hostile or broken.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "planner/report/html_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kMaxPage = 2 << 20;

// Names that close the element, the attribute or the page, that hide text, or are not text.
const std::string kHostile[] = {
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "]]></title></svg><h1>&amp;lt;",
    std::string("a\0b\x01\x1B[31m\x7F", 10),
    "\xFF\xFE overlong \xC0\xBC and \xED\xA0\x80 and \xF0\x9F",
    "turned \u202E around \u2066, \u2028 broken",
    "\n\r\t",
    "${x} {{y}} javascript:alert(1) -->",
    std::string(100000, '<'),
};

TEST(HtmlTest, HostileNamesStayText) {
  for (const std::string& name : kHostile) {
    Sample sample;
    sample.graph.name = name;
    sample.graph.mutable_node(1).name = name;
    for (size_t v = 0; v < sample.graph.values().size(); ++v) {
      Value& value = sample.graph.mutable_value(static_cast<ValueId>(v));
      for (v1::ParallelOperator& op : *sample.plan.mutable_parallel_operators()) {
        if (op.tensor() == value.name) op.set_tensor(name);
      }
      value.name = name;
    }
    v1::OperatorPlan* op = sample.plan.mutable_operators(1);
    op->set_node(name);
    op->set_op(name);
    (*op->mutable_degrees())[name] = 3;
    sample.plan.set_graph_fingerprint(name);
    sample.plan.mutable_devices(0)->set_model(name.substr(0, 1000));
    sample.plan.mutable_alternatives(0)->set_name(name);
    sample.plan.mutable_alternatives(1)->set_refused(name);
    sample.plan.mutable_parallel_operators(0)->set_consumer(name);
    for (TimelineTask& task : sample.timeline.tasks) task.node = name;
    for (LinkTraffic& link : sample.timeline.links) link.name = name;
    const std::string page = sample.Page();
    const std::vector<Element> elements = Parsed(page);
    EXPECT_THAT(elements[0].text, Not(HasSubstr("\x1B")));
    EXPECT_LT(page.size(), 200000u);
    // No name became markup: the elements are those of a page with harmless names.
    Sample innocent;
    EXPECT_LE(std::count(page.begin(), page.end(), '<'),
              std::ranges::count(innocent.Page(), '<') + 40);
  }
  Sample sample;
  sample.graph.name = kHostile[0];
  EXPECT_THAT(sample.Page(), HasSubstr("<h1>&lt;script&gt;alert(1)&lt;/script&gt;</h1>"));
}

TEST(HtmlTest, SizeStaysBoundedForManyTasksAndDevices) {
  Sample sample(2, 64);
  sample.timeline = {};
  sample.timeline.seconds = 1;
  for (int i = 0; i < 10000; ++i) {
    for (int d = 0; d < 64; ++d) {
      // No two neighbors have the same kind, and some tasks are long.
      const auto kind = static_cast<TimelineTask::Kind>((i * 7 + d) % 5);
      const double begin = i * 1e-4;
      sample.timeline.tasks.push_back({kind, d, begin,
                                       begin + (i % 100 == 0 ? 9e-5 : 3e-5 + d * 1e-7), i % 3 == 0,
                                       1000, absl::StrCat("layers.", i, ".\"<node>\"")});
    }
  }
  for (int d = 0; d < 64; ++d) {
    MemoryCurve curve;
    curve.limit = (1 << 30) + d;
    for (int i = 0; i < 10000; ++i) {
      curve.seconds.push_back(i * 1e-4);
      curve.bytes.push_back((i * 7919 + d) % 1000003);
    }
    sample.timeline.memory.push_back(curve);
    for (int e = 0; e < 64; ++e) sample.timeline.links.push_back({"a link", 1e6, 1e9});
  }
  const std::string page = sample.Page();
  EXPECT_LT(page.size(), kMaxPage);
  const std::vector<Element> elements = Parsed(page);
  const std::string text = Section(elements, "timeline").text;
  EXPECT_THAT(text, HasSubstr("Lanes of the 16 busiest devices; the other 48"));
  EXPECT_THAT(text, HasSubstr("all devices"));
  EXPECT_THAT(text, HasSubstr("device 63"));  // has the longest tasks
  EXPECT_THAT(text, Not(HasSubstr("not drawn")));
  EXPECT_THAT(Section(elements, "links").text, HasSubstr("4064 other links"));
  EXPECT_THAT(Section(elements, "memory").text, HasSubstr("48 more stay below"));
}

// Layers that the plan treats alike are few boxes; operators without a pattern are cut off.
TEST(HtmlTest, SizeStaysBoundedForManyOperators) {
  Sample layered(2500, 8);
  const std::string page = layered.Page();
  EXPECT_LT(page.size(), kMaxPage);
  std::string text = Section(Parsed(page), "graph").text;
  EXPECT_THAT(text, HasSubstr("layers.0-2499.fc"));
  EXPECT_THAT(text, HasSubstr("share a box"));

  Sample mixed(2500, 8);
  for (int i = 0; i < mixed.plan.operators_size(); ++i) {
    const std::string name = absl::StrFormat("operator_%d_%s", i, std::string(100, 'x'));
    mixed.graph.mutable_node(i).name = name;
    mixed.plan.mutable_operators(i)->set_node(name);
  }
  const std::string cut = mixed.Page();
  EXPECT_LT(cut.size(), kMaxPage);
  text = Section(Parsed(cut), "graph").text;
  EXPECT_THAT(text, HasSubstr("stops after 320 boxes: 4682 of 5002 operators are not in it"));
  EXPECT_THAT(Section(Parsed(cut), "operators").text, HasSubstr("4702 more rows"));
}

// The last layer reads all layers before it, and every edge has a layout conversion.
TEST(HtmlTest, SizeStaysBoundedForManyEdges) {
  Sample sample(150, 4);
  for (int i = 0; i < sample.plan.operators_size(); ++i) {
    const std::string name = absl::StrCat("op_", i);
    sample.graph.mutable_node(i).name = name;
    sample.plan.mutable_operators(i)->set_node(name);
    for (int j = 0; j + 1 < i; ++j) {
      const ValueId v = sample.graph.node(j).outputs[0];
      sample.graph.mutable_node(i).inputs.push_back(v);
      if (j % 2 != 0) continue;
      v1::ParallelOperator* op = sample.plan.add_parallel_operators();
      op->set_kind(v1::ParallelOperator::COMBINE);
      op->set_tensor(sample.graph.value(v).name);
      op->set_consumer(name);
      op->set_bytes(1e6);
    }
  }
  const std::string page = sample.Page();
  EXPECT_LT(page.size(), kMaxPage);
  EXPECT_THAT(Section(Parsed(page), "graph").text, HasSubstr("edges are not drawn"));
}

// Everything at once, with names whose characters each need six bytes.
TEST(HtmlTest, SizeStaysBoundedWhateverTheInput) {
  Sample sample(150, 64);
  const std::string quotes(300, '"');
  sample.graph.name = quotes;
  for (size_t v = 0; v < sample.graph.values().size(); ++v) {
    Value& value = sample.graph.mutable_value(static_cast<ValueId>(v));
    value.name = absl::StrCat(quotes, v, quotes);
  }
  sample.plan.clear_parallel_operators();
  for (int i = 0; i < sample.plan.operators_size(); ++i) {
    const std::string name = absl::StrCat(quotes, i, quotes);
    sample.graph.mutable_node(i).name = name;
    v1::OperatorPlan* op = sample.plan.mutable_operators(i);
    op->set_node(name);
    op->set_op(quotes);
    (*op->mutable_degrees())[quotes] = 1;
    op->clear_devices();
    for (int d = 0; d < 64; d += 2) op->add_devices((d * 7 + i) % 64);
    for (int j = i % 5; j + 1 < i; j += 5) {
      sample.graph.mutable_node(i).inputs.push_back(sample.graph.node(j).outputs[0]);
    }
    for (ValueId v : sample.graph.node(i).inputs) {
      for (int kind = 1; kind < 4; ++kind) {
        v1::ParallelOperator* change = sample.plan.add_parallel_operators();
        change->set_kind(static_cast<v1::ParallelOperator::Kind>(kind));
        change->set_tensor(sample.graph.value(v).name);
        change->set_consumer(name);
        change->set_degree(1000000 + i);
        change->set_bytes(1e6);
      }
    }
  }
  for (int i = 0; i < 1000; ++i) {
    v1::Alternative* alternative = sample.plan.add_alternatives();
    alternative->set_name(quotes);
    alternative->set_refused(quotes);
    sample.plan.mutable_devices(i % 64)->set_model(absl::StrCat(quotes, i));
  }
  sample.timeline = {};
  for (int d = 0; d < 64; ++d) {
    for (int i = 0; i < 1000; ++i) {
      sample.timeline.tasks.push_back({static_cast<TimelineTask::Kind>(i % 5), d, i * 1.0, i + 0.9,
                                       i % 2 == 0, 1e9, absl::StrCat(quotes, i, quotes)});
    }
    MemoryCurve curve;
    for (int i = 0; i < 600; ++i) {
      curve.seconds.push_back(i);
      curve.bytes.push_back((i * 7919 + d) % 1000003);
    }
    sample.timeline.memory.push_back(curve);
    sample.timeline.links.push_back({quotes, 1e9, 1e9});
  }
  const std::string page = sample.Page();
  Parsed(page);
  EXPECT_LT(page.size(), kMaxPage);
}

TEST(HtmlTest, EmptyPlanHasAPageToo) {
  const std::vector<Element> page = Parsed(RenderPlanHtml({}, {}, {}));
  EXPECT_THAT(page[0].text, HasSubstr("There is no graph to show"));
  EXPECT_THAT(page[0].text, HasSubstr("There is no timeline to show"));
  EXPECT_THAT(page[0].text, HasSubstr("There is no traffic to show"));
  EXPECT_THAT(page[0].text, HasSubstr("There is no memory curve to show"));
}

TEST(HtmlTest, NanAndInfinityAreHandled) {
  const double kBad[] = {std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::infinity(), -1, 1e300};
  for (double bad : kBad) {
    Sample sample;
    sample.plan.mutable_prediction()->set_step_seconds(bad);
    sample.plan.mutable_prediction()->set_bytes_moved(bad);
    sample.plan.mutable_alternatives(0)->mutable_prediction()->set_step_seconds(bad);
    sample.plan.mutable_operators(0)->set_predicted_seconds(bad);
    sample.plan.mutable_operators(0)->add_devices(-5);
    sample.plan.mutable_operators(0)->add_devices(std::numeric_limits<int>::max());
    sample.plan.mutable_parallel_operators(0)->set_bytes(bad);
    sample.plan.mutable_parallel_operators(1)->set_kind(
        static_cast<v1::ParallelOperator::Kind>(99));
    sample.plan.mutable_devices(0)->set_kind(static_cast<v1::Device::Kind>(99));
    sample.plan.mutable_prediction()->add_peak_bytes(std::numeric_limits<int64_t>::max());
    sample.timeline.seconds = bad;
    sample.timeline.tasks[0].begin = bad;
    sample.timeline.tasks[1].end = bad;
    sample.timeline.tasks[2].bytes = bad;
    sample.timeline.tasks[3].device = -1;
    sample.timeline.tasks[4].device = std::numeric_limits<int>::max();
    sample.timeline.links[0].bytes = bad;
    sample.timeline.links[1].bandwidth = bad;
    sample.timeline.memory[0].seconds[0] = bad;
    sample.timeline.memory[1].bytes.pop_back();
    sample.timeline.memory[2].bytes[0] = std::numeric_limits<int64_t>::min();
    sample.timeline.memory[3].bytes[0] = std::numeric_limits<int64_t>::max();
    const std::string page = sample.Page();
    for (const Element& e : Parsed(page)) {
      for (const char* key : {"x", "y", "width", "height", "cx", "cy"}) {
        if (e.attributes.contains(key) && e.name != "meta") {
          EXPECT_LT(std::abs(e.Number(key)), 1e5) << bad << " " << e.name << " " << key;
        }
      }
      EXPECT_THAT(e.Attribute("d"), Not(HasSubstr("n")));  // nan, inf
    }
  }
}

TEST(HtmlTest, PlanOfAnotherGraphIsReported) {
  Sample sample;
  sample.graph = LayeredGraph(1);
  EXPECT_THAT(Section(Parsed(sample.Page()), "graph").text,
              HasSubstr("2 operators of the plan are not in this graph"));
  sample = Sample();
  sample.plan.mutable_operators()->RemoveLast();
  EXPECT_THAT(Section(Parsed(sample.Page()), "graph").text, HasSubstr("not in the plan"));
}

}  // namespace
}  // namespace espalier
