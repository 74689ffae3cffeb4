#include "server/replay/program_probes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/graph/name_pattern.h"

namespace espalier {
namespace {

// A probe with a wildcard that also means values which the programs do not have.
struct ReplacedWildcard {
  std::string text;
  std::vector<ProbeExpression> matches;
};

bool IsValueWildcard(const ProbeExpression& probe) {
  return probe.targets.size() == 1 && probe.targets[0].kind == ProbeTarget::kValue &&
         probe.targets[0].has_wildcard();
}

// Whether the model may have something of the probe that the programs do not have.
bool MayBeRemoved(const ProbeExpression& probe, const ProbePoints& points) {
  return IsValueWildcard(probe) ||
         std::any_of(probe.targets.begin(), probe.targets.end(), [&](const ProbeTarget& target) {
           return target.kind == ProbeTarget::kValue && !points.Value(target.name).ok();
         });
}

// The computed values of the model that a wildcard means and the programs do not have.
std::vector<ProbeExpression> RemovedMatches(const ProbeExpression& probe, const Graph& original,
                                            const ProbePoints& points) {
  std::vector<ProbeExpression> matches;
  if (!IsValueWildcard(probe)) return matches;
  for (const Value& value : original.values()) {
    if (value.producer == kNoNode || points.values().contains(value.name)) continue;
    if (!MatchesPattern(probe.targets[0].name, value.name)) continue;
    matches.push_back({{{ProbeTarget::kValue, value.name, ""}}, probe.reduction});
  }
  return matches;
}

}  // namespace

absl::StatusOr<ProgramProbes> FindProgramProbes(
    const OpRegistry& registry, const ProbePoints& points, size_t ranks,
    const std::vector<ProbeExpression>& probes,
    const std::function<absl::StatusOr<Graph>()>& original_graph) {
  ProgramProbes result;
  std::vector<ProbeExpression> read = probes;
  std::vector<ReplacedWildcard> wildcards;
  std::map<std::string, absl::Status> lacking;  // of what the programs do not have
  if (std::any_of(probes.begin(), probes.end(),
                  [&](const ProbeExpression& probe) { return MayBeRemoved(probe, points); })) {
    absl::StatusOr<Graph> original = original_graph();
    if (!original.ok()) return original.status();
    std::vector<ProbeExpression> asked = probes;
    for (const ProbeExpression& probe : probes) {
      ReplacedWildcard wildcard{ToString(probe), RemovedMatches(probe, *original, points)};
      if (wildcard.matches.empty()) continue;
      asked.insert(asked.end(), wildcard.matches.begin(), wildcard.matches.end());
      wildcards.push_back(std::move(wildcard));
    }
    absl::StatusOr<DerivedValues> derived = DerivedValues::Make(registry, *original, points, asked);
    if (absl::IsInvalidArgument(derived.status()) && !wildcards.empty()) {
      // Too much for all that wildcards match: they match what the programs have.
      for (const ReplacedWildcard& wildcard : wildcards) {
        for (const ProbeExpression& match : wildcard.matches) {
          lacking.emplace(ToString(match), derived.status());
        }
      }
      derived = DerivedValues::Make(registry, *original, points, probes);
    }
    if (!derived.ok()) return derived.status();
    result.derived = *std::move(derived);
    lacking.insert(result.derived.lacking().begin(), result.derived.lacking().end());
    const std::vector<ProbeExpression> computed = result.derived.probes();
    for (const ProbeExpression& probe : computed) lacking.erase(ToString(probe));
    std::erase_if(read, [&](const ProbeExpression& probe) {
      return std::find(computed.begin(), computed.end(), probe) != computed.end();
    });
    read.insert(read.end(), result.derived.sources().begin(), result.derived.sources().end());
  }
  absl::StatusOr<FoundProbes> found = FindProbes(read, points, ranks);
  if (!found.ok()) return found.status();
  result.read = *std::move(found);
  // A wildcard lacks nothing if a value that is computed again matches it.
  for (const ReplacedWildcard& wildcard : wildcards) {
    const auto why = lacking.find(ToString(wildcard.matches[0]));
    const bool any = std::any_of(
        wildcard.matches.begin(), wildcard.matches.end(),
        [&](const ProbeExpression& match) { return !lacking.contains(ToString(match)); });
    std::erase_if(result.read.lacking,
                  [&](const auto& lack) { return any && lack.first == wildcard.text; });
    for (auto& [probe, reason] : result.read.lacking) {
      if (probe == wildcard.text) reason = why->second;
    }
  }
  for (auto& [probe, reason] : result.read.lacking) {
    const auto why = lacking.find(probe);
    if (why == lacking.end()) continue;
    reason = why->second;
    lacking.erase(why);
  }
  result.read.lacking.insert(result.read.lacking.end(), lacking.begin(), lacking.end());
  return result;
}

}  // namespace espalier
