// The page on which `espalier plan` and `espalier explain` show a plan to a person.
#pragma once

#include <string>

#include "ops/graph/graph.h"
#include "planner/report/timeline.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// One HTML page that needs nothing else: no script, no address outside it; light or dark as the
// reader has it, and fit to be printed. `graph` is the forward graph that the plan is for, or that
// with gradients; `timeline` is of the same plan and may be empty. They may come from anybody:
// names are escaped, and what does not fit together is left out and said. The same input gives the
// same bytes. Below 2 MB whatever the input: of what is too much to be drawn the page says how much
// is missing.
std::string RenderPlanHtml(const v1::Plan& plan, const Graph& graph, const Timeline& timeline);

}  // namespace espalier
