// Test helpers: a strict parser of the page, and hand-made plans.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "planner/report/timeline.h"

namespace espalier {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;  // with entities resolved
  std::string text;                               // including that of child elements
  int parent = -1;                                // in the list; -1: the root

  std::string Attribute(const std::string& attribute) const;  // "" without it
  bool HasClass(const std::string& css_class) const;
  double Number(const std::string& attribute) const;  // fails the test if it is none
};

// Parses a page into elements in the order of their start tags. Refuses anything but well-formed
// XML after a doctype: mismatched tags, unquoted or repeated attributes, '<' or '&' that begins
// neither a tag nor one of the five entities, control characters, invalid UTF-8. Also refuses what
// the page must never hold: elements that run or load something, attributes on*, links other than
// "#...".
absl::StatusOr<std::vector<Element>> ParsePage(absl::string_view page);

// An MLP of `layers` layers of two operators ("layers.3.fc", "layers.3.act") between "embed" and
// "loss".
Graph LayeredGraph(int layers);

// A plan for that graph: sample×devices, except that "layers.<n>.fc" is split along out on half of
// the devices. Each layout conversion moves 1 MiB, each gradient sum 2 MiB. Times and memory are
// round numbers.
v1::Plan LayeredPlan(int layers, int devices);

// Per operator and device one forward task of 1 ms and one backward task of 2 ms, then a gradient
// sum of 4 ms and an update of 1 ms. Memory rises by 1 MiB per forward task and falls again.
Timeline LayeredTimeline(const v1::Plan& plan);

}  // namespace espalier
