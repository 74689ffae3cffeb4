// Plans in Graphviz' DOT language: FlexFlow's --taskgraph and --compgraph.
#pragma once

#include <string>

#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "planner/report/timeline.h"

namespace espalier {

// One node per task, with its time; one for all devices of a transfer or collective. Edges follow
// each device's task order. They are all dependencies, because devices run their tasks in order and
// synchronize in transfers.
std::string TaskGraphDot(const Timeline& timeline);

// One box per operator with its split and devices, and one ellipse per parallel operator on an
// edge, before its consumer. With `costs` adds predicted seconds and bytes between devices.
// REQUIRES: `graph` is the one that the plan is for. Names are untrusted and escaped.
std::string ComputationGraphDot(const v1::Plan& plan, const Graph& graph, bool costs);

}  // namespace espalier
