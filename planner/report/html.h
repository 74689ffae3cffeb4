// The HTML page that shows a plan, for `espalier plan` and `espalier explain`.
#pragma once

#include <string>

#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "planner/report/timeline.h"

namespace espalier {

// Renders one self-contained HTML page: no scripts, no external links, light and dark mode,
// printable. `graph` is the plan's forward graph, with or without gradients; `timeline` is of the
// same plan and may be empty. Inputs are untrusted: names are escaped, and inconsistent parts are
// left out with a note. Deterministic. Always below 2 MB: the page says how much it omits.
std::string RenderPlanHtml(const v1::Plan& plan, const Graph& graph, const Timeline& timeline);

}  // namespace espalier
