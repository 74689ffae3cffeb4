// The probes of a replay: parsed, and found in the programs of a plan.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/probe.pb.h"
#include "ops/probe/expression.h"
#include "planner/lowering/probe_points.h"

namespace espalier {

// Parses every probe. Errors name its number.
absl::StatusOr<std::vector<ProbeExpression>> ParseProbes(const std::vector<std::string>& texts);

// A probe without wildcards.
struct NamedProbe {
  ProbeExpression probe;
  std::vector<int> numbers;   // of its targets, as in RankProbe.probe
  std::vector<bool> adds_up;  // by target
};

struct FoundProbes {
  std::vector<NamedProbe> probes;                   // in the order of the texts, then of names
  std::vector<std::vector<v1::RankProbe>> by_rank;  // what each rank reads
  // Probes for which the programs have no name, and matches of a wildcard that cannot be read, with
  // the reason.
  std::vector<std::pair<std::string, absl::Status>> lacking;
};

// Begins names that the coordinator gives, such as that of the column of example weights. Of
// columns, a wildcard means them only if it begins with this, too.
inline constexpr char kInternalNames[] = "espalier.";

// The names that a target with wildcards may mean, of those that there are: of values before those
// of outputs, which are values, too.
std::vector<ProbeTarget> MatchingTargets(const ProbeTarget& target, const ProbePoints& points);
// The error if there are none, and that of other names of this kind: of optimizer state
// "PARAMETER, SLOT".
absl::Status NothingMatches(const ProbeTarget& target, const ProbePoints& points);
absl::Status NothingMatches(const ProbeTarget& target, const std::set<std::string>& names);

bool IsAmong(const ProbeExpression& probe, const FoundProbes& found);

// Finds the probes in programs of `ranks` ranks. Errors are those of ProbePoints except NotFound,
// and FailedPrecondition of what a wildcard matches; and of CheckConfusion. What a wildcard and a
// probe before it mean is found once.
absl::StatusOr<FoundProbes> FindProbes(const std::vector<ProbeExpression>& probes,
                                       const ProbePoints& points, size_t ranks);

}  // namespace espalier
