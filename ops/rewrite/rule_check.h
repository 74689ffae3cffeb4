// Semantic checks of a parsed rule.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// Checks the order of the nodes and that matching can start at the last node, and marks inputs that
// lose their gradient. REQUIRES: `rule` is otherwise complete and its operators are in the
// registry. Returns InvalidArgument with the reason.
absl::Status FinishRule(const OpRegistry& registry, RewriteRule* rule);

// Returns the nodes of the pattern that the last node does not depend on, last first. Matching
// finds them through operands that they share with later nodes.
std::vector<int> Siblings(const RewriteRule& rule);

}  // namespace espalier
