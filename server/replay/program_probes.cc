#include "server/replay/program_probes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ops/graph/name_pattern.h"
#include "server/replay/bypassed_values.h"

namespace espalier {
namespace {

// A probe with a wildcard that also means values which the programs do not have.
struct ReplacedWildcard {
  std::string text;
  std::vector<ProbeExpression> matches;
  std::vector<ProbeExpression> left_out;  // which it would mean if nothing else matched
};

bool IsWildcard(const ProbeExpression& probe) {
  return probe.targets.size() == 1 && probe.targets[0].has_wildcard() &&
         (probe.targets[0].kind == ProbeTarget::kValue ||
          probe.targets[0].kind == ProbeTarget::kGrad);
}

// Whether the model may have something of the probe that the programs do not have.
bool MayBeRemoved(const ProbeExpression& probe, const ProbePoints& points) {
  return IsWildcard(probe) ||
         std::any_of(probe.targets.begin(), probe.targets.end(), [&](const ProbeTarget& target) {
           return target.kind == ProbeTarget::kGrad
                      ? !points.parameters().contains(target.name)
                      : target.kind == ProbeTarget::kValue && !points.Value(target.name).ok();
         });
}

bool AsksGradients(const ProbeExpression& probe) {
  return std::any_of(probe.targets.begin(), probe.targets.end(),
                     [](const ProbeTarget& target) { return target.kind == ProbeTarget::kGrad; });
}

// Returns where the programs have gradients that are the model's, and keeps in `bypassed` those
// that they do not have.
ProbePoints CorrectGradients(const ProbePoints& points, const Graph& original,
                             std::set<std::string>* bypassed) {
  std::map<std::string, std::optional<std::string>> others;
  for (const std::string& name : *bypassed) {
    std::optional<std::string> addend = SoleAddend(original, name);
    const bool there =
        addend.has_value() && points.gradients().contains(*addend) && !bypassed->contains(*addend);
    others[name] = there ? std::move(addend) : std::nullopt;
  }
  for (const auto& [name, other] : others) {
    if (other.has_value()) bypassed->erase(name);
  }
  return points.WithGradientsOf(others);
}

// The computed values of the model that a wildcard means and the programs do not have, or whose
// gradients it means. Each gradient that rewrites removed takes many operators, so a wildcard
// leaves these out, unless it matches nothing else.
ReplacedWildcard RemovedMatches(const ProbeExpression& probe, const Graph& original,
                                const ProbePoints& points, const std::set<std::string>& bypassed) {
  ReplacedWildcard found{ToString(probe), {}, {}};
  if (!IsWildcard(probe)) return found;
  const ProbeTarget& pattern = probe.targets[0];
  const auto add = [&](const std::string& name, std::vector<ProbeExpression>* matches) {
    if (!MatchesPattern(pattern.name, name)) return;
    matches->push_back({{{pattern.kind, name, ""}}, probe.reduction});
  };
  const bool gradients = pattern.kind == ProbeTarget::kGrad;
  if (gradients) {
    for (const std::string& name : bypassed) add(name, &found.matches);
  }
  const bool others =
      gradients && (!found.matches.empty() || !MatchingTargets(pattern, points).empty());
  for (const Value& value : original.values()) {
    if (value.producer == kNoNode || (gradients && !IsFloat(value.type.dtype))) continue;
    const bool there =
        gradients ? points.gradients().contains(value.name) || bypassed.contains(value.name)
                  : points.values().contains(value.name);
    if (!there) add(value.name, others ? &found.left_out : &found.matches);
  }
  return found;
}

// What wildcards leave out, of which only that counts which has a gradient that can be derived.
std::set<std::string> LeftOut(const OpRegistry& registry, const Graph& original,
                              const ProbePoints& points,
                              const std::vector<ReplacedWildcard>& wildcards) {
  std::vector<ProbeExpression> probes;
  for (const ReplacedWildcard& wildcard : wildcards) {
    probes.insert(probes.end(), wildcard.left_out.begin(), wildcard.left_out.end());
  }
  if (probes.empty()) return {};
  const absl::StatusOr<DerivedValues> derived =
      DerivedValues::Make(registry, original, points, probes);
  // All at once may be too much; one by one they are not.
  if (derived.ok()) probes = derived->probes();
  std::set<std::string> names;
  for (const ProbeExpression& probe : probes) names.insert(ToString(probe.targets[0]));
  return names;
}

}  // namespace

absl::StatusOr<ProgramProbes> FindProgramProbes(
    const OpRegistry& registry, const ProbePoints& all_points, size_t ranks,
    const std::vector<ProbeExpression>& probes,
    const std::function<absl::StatusOr<Graph>()>& original_graph) {
  ProgramProbes result;
  std::optional<ProbePoints> corrected;  // where gradients are the model's
  std::vector<ProbeExpression> read = probes;
  std::vector<ReplacedWildcard> wildcards;
  std::map<std::string, absl::Status> lacking;  // of what the programs do not have
  if (std::any_of(probes.begin(), probes.end(),
                  [&](const ProbeExpression& probe) { return MayBeRemoved(probe, all_points); })) {
    absl::StatusOr<Graph> original = original_graph();
    if (!original.ok()) return original.status();
    std::set<std::string> bypassed;
    if (std::any_of(probes.begin(), probes.end(), AsksGradients)) {
      bypassed = BypassedValues(*original, all_points.graph());
      std::erase_if(bypassed,
                    [&](const std::string& name) { return !all_points.values().contains(name); });
      corrected = CorrectGradients(all_points, *original, &bypassed);
    }
    const ProbePoints& points = corrected.has_value() ? *corrected : all_points;
    std::vector<ProbeExpression> asked = probes;
    for (const ProbeExpression& probe : probes) {
      ReplacedWildcard wildcard = RemovedMatches(probe, *original, points, bypassed);
      if (wildcard.matches.empty() && wildcard.left_out.empty()) continue;
      for (const ProbeExpression& match : wildcard.matches) {
        if (std::find(asked.begin(), asked.end(), match) == asked.end()) asked.push_back(match);
      }
      wildcards.push_back(std::move(wildcard));
    }
    absl::StatusOr<DerivedValues> derived = DerivedValues::Make(registry, *original, points, asked);
    result.left_out = LeftOut(registry, *original, points, wildcards);
    std::erase_if(wildcards,
                  [](const ReplacedWildcard& wildcard) { return wildcard.matches.empty(); });
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
    for (const std::string& value : result.derived.values()) result.left_out.erase(value);
    std::erase_if(read, [&](const ProbeExpression& probe) {
      return std::find(computed.begin(), computed.end(), probe) != computed.end();
    });
    read.insert(read.end(), result.derived.sources().begin(), result.derived.sources().end());
  }
  absl::StatusOr<FoundProbes> found =
      FindProbes(read, corrected.has_value() ? *corrected : all_points, ranks);
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
