// What is said of patterns that match nothing that runs have logged.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace espalier {

// "; there is no lss; did you mean 'loss'?", by the names that there are, with and without their
// reductions. If all patterns match some: that there are other steps or sources. Empty if there are
// no names.
std::string WhyNothingMatches(const std::vector<std::string>& patterns,
                              const std::set<std::string>& names);

}  // namespace espalier
