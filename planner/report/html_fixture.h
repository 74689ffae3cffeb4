// Test fixture: a plan, its page and parts of the page.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "planner/report/html.h"
#include "planner/report/testing.h"

namespace espalier {

inline std::vector<Element> Parsed(const std::string& page) {
  absl::StatusOr<std::vector<Element>> elements = ParsePage(page);
  EXPECT_TRUE(elements.ok()) << elements.status();
  return elements.ok() ? *std::move(elements) : std::vector<Element>(1);
}

// Elements inside the one whose attribute `key` is or contains (a class) `value`.
inline std::vector<Element> Inside(const std::vector<Element>& page, const std::string& key,
                                   const std::string& value) {
  std::vector<Element> found;
  std::vector<bool> inside(page.size(), false);
  for (size_t i = 0; i < page.size(); ++i) {
    const int parent = page[i].parent;
    if (parent < 0) continue;
    const Element& above = page[parent];
    inside[i] = inside[parent] || above.Attribute(key) == value ||
                (key == "class" && above.HasClass(value));
    if (inside[i]) found.push_back(page[i]);
  }
  return found;
}

inline const Element& Section(const std::vector<Element>& page, const std::string& id) {
  for (const Element& element : page) {
    if (element.Attribute("id") == id) return element;
  }
  ADD_FAILURE() << "no section " << id;
  return page[0];
}

struct Sample {
  explicit Sample(int layers = 2, int devices = 4)
      : graph(LayeredGraph(layers)),
        plan(LayeredPlan(layers, devices)),
        timeline(LayeredTimeline(plan)) {}
  std::string Page() const { return RenderPlanHtml(plan, graph, timeline); }
  Graph graph;
  v1::Plan plan;
  Timeline timeline;
};

}  // namespace espalier
