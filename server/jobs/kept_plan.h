// Whether an interrupted job can go on with the plan that it had.
#pragma once

#include <string>
#include <vector>

#include "espalier/v1/plan.pb.h"

namespace espalier {

// Returns true if `plan`, of an earlier attempt, is for this graph and for as many devices, none of
// which is of another kind or model or has less memory. With the same plan a job goes on with the
// same bits; a new search may find another one, as measurements have changed. An empty plan is
// none.
bool CanKeepPlan(const v1::Plan& plan, const std::string& graph_fingerprint,
                 const std::vector<v1::Device>& devices);

}  // namespace espalier
