// A plan in Graphviz' language, for those who draw or count with other tools: what FlexFlow writes
// for --taskgraph and --compgraph.
#pragma once

#include <string>

#include "ops/graph/graph.h"
#include "planner/report/timeline.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// One node for each task, with its time; one for all devices of a transfer or collective. Edges:
// what a device does next. Devices run their tasks in order and meet in transfers, so that is all
// that a task waits for.
std::string TaskGraphDot(const Timeline& timeline);

// One box for each operator of the plan: its split and devices; an ellipse for each parallel
// operator between two of them, in front of its consumer. With `costs` predicted seconds and the
// bytes that cross devices, too. `graph` is the one that the plan is for; names may come from
// anybody and are escaped.
std::string ComputationGraphDot(const v1::Plan& plan, const Graph& graph, bool costs);

}  // namespace espalier
