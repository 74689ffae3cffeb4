// For the tests of this folder: a reader of the page that forgives nothing, and plans made by hand.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph.h"
#include "planner/report/timeline.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;  // with entities resolved
  std::string text;                               // of it and of what is inside it, likewise
  int parent = -1;                                // in the list; -1: the root

  std::string Attribute(const std::string& attribute) const;  // "" without it
  bool HasClass(const std::string& css_class) const;
  double Number(const std::string& attribute) const;  // fails the test if it is none
};

// Elements in the order of their start tags. Refuses what is not well-formed XML behind a doctype:
// tags that do not match, attributes without quotes or twice, '<' or '&' that begins neither tag
// nor one of the five entities, control characters, bytes that are no UTF-8. Refuses too what the
// page must never hold: elements that run or load something, attributes on*, addresses but "#...".
absl::StatusOr<std::vector<Element>> ParsePage(absl::string_view page);

// An MLP of `layers` layers of two operators ("layers.3.fc", "layers.3.act") between "embed" and
// "loss".
Graph LayeredGraph(int layers);

// For that graph: sample×devices, but that "layers.<n>.fc" is split along out on half of the
// devices. Each change of layout moves 1 MiB, each sum of a gradient 2 MiB. Times and memory are
// round numbers.
v1::Plan LayeredPlan(int layers, int devices);

// One forward task of 1 ms and one backward task of 2 ms per operator and device, then a sum of
// gradients of 4 ms and an update of 1 ms; memory rises by 1 MiB per forward task and falls again.
Timeline LayeredTimeline(const v1::Plan& plan);

}  // namespace espalier
