// What a rule must be beyond its words.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// Checks the order of the nodes and that matching can start at the last one, and marks the inputs
// that lose their gradient. `rule` is complete but for that; its operators are in the registry.
// InvalidArgument says what is wrong.
absl::Status FinishRule(const OpRegistry& registry, RewriteRule* rule);

// The nodes of the pattern on which the last one does not depend, last first: they are found by
// what they read together with those behind them.
std::vector<int> Siblings(const RewriteRule& rule);

}  // namespace espalier
