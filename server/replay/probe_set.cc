#include "server/replay/probe_set.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/name_pattern.h"
#include "ops/probe/reduce.h"

namespace espalier {
namespace {

std::set<std::string> OutputsOf(const ProbePoints& points) {
  std::set<std::string> names;
  for (const auto& [output, value] : points.outputs()) names.insert(output);
  return names;
}

absl::Status NoMatch(absl::string_view kind, const std::string& pattern,
                     const std::set<std::string>& names) {
  return absl::NotFoundError(
      absl::StrCat("no ", kind, " matches; ", NamesThatThereAre(pattern, names)));
}

absl::StatusOr<ProbePoints::Places> PlacesOf(const ProbeTarget& target, const ProbePoints& points) {
  switch (target.kind) {
    case ProbeTarget::kValue:
      return points.Value(target.name);
    case ProbeTarget::kParam:
      return points.Parameter(target.name);
    case ProbeTarget::kGrad:
      return points.Gradient(target.name);
    case ProbeTarget::kUpdate:
      return points.Update(target.name);
    case ProbeTarget::kState:
      return points.State(target.name, target.slot);
    case ProbeTarget::kBatch:
      return points.Batch(target.name);
  }
  return absl::InternalError("unknown kind of target");
}

}  // namespace

std::vector<ProbeTarget> MatchingTargets(const ProbeTarget& target, const ProbePoints& points) {
  std::vector<ProbeTarget> found;
  const auto add = [&](const std::set<std::string>& names) {
    for (const std::string& name : names) {
      if (!MatchesPattern(target.name, name)) continue;
      const bool internal = absl::StartsWith(name, kInternalNames);
      const bool asked = absl::StartsWith(target.name, kInternalNames);
      if (target.kind == ProbeTarget::kBatch && internal && !asked) continue;
      ProbeTarget one = target;
      one.name = name;
      if (target.kind != ProbeTarget::kState) {
        found.push_back(std::move(one));
        continue;
      }
      for (const std::string& slot : points.states(name)) {
        if (!MatchesPattern(target.slot, slot)) continue;
        one.slot = slot;
        found.push_back(one);
      }
    }
  };
  switch (target.kind) {
    case ProbeTarget::kValue:
      add(points.values());
      if (found.empty()) add(OutputsOf(points));
      break;
    case ProbeTarget::kGrad:
      add(points.gradients());
      if (found.empty()) {
        std::set<std::string> outputs;
        for (const auto& [output, value] : points.outputs()) {
          if (points.gradients().contains(value)) outputs.insert(output);
        }
        add(outputs);
      }
      break;
    case ProbeTarget::kParam:
    case ProbeTarget::kUpdate:
    case ProbeTarget::kState:
      add(points.parameters());
      break;
    case ProbeTarget::kBatch:
      add(points.columns());
      break;
  }
  return found;
}

absl::Status NothingMatches(const ProbeTarget& target, const std::set<std::string>& names) {
  switch (target.kind) {
    case ProbeTarget::kValue:
      return NoMatch("value", target.name, names);
    case ProbeTarget::kGrad:
      return NoMatch("gradient", target.name, names);
    case ProbeTarget::kBatch:
      return NoMatch("column", target.name, names);
    case ProbeTarget::kParam:
    case ProbeTarget::kUpdate:
      return NoMatch("parameter", target.name, names);
    case ProbeTarget::kState:
      if (names.empty()) return absl::NotFoundError("the job's optimizer has no state");
      return NoMatch("optimizer state", absl::StrCat(target.name, ", ", target.slot), names);
  }
  return absl::InternalError("unknown kind of target");
}

absl::Status NothingMatches(const ProbeTarget& target, const ProbePoints& points) {
  std::set<std::string> names;
  switch (target.kind) {
    case ProbeTarget::kValue:
      names = points.values();
      names.merge(OutputsOf(points));
      break;
    case ProbeTarget::kGrad:
      names = points.gradients();
      break;
    case ProbeTarget::kBatch:
      names = points.columns();
      break;
    case ProbeTarget::kParam:
    case ProbeTarget::kUpdate:
      names = points.parameters();
      break;
    case ProbeTarget::kState:
      for (const std::string& parameter : points.parameters()) {
        for (const std::string& slot : points.states(parameter)) {
          names.insert(absl::StrCat(parameter, ", ", slot));
        }
      }
      break;
  }
  return NothingMatches(target, names);
}

absl::StatusOr<std::vector<ProbeExpression>> ParseProbes(const std::vector<std::string>& texts) {
  std::vector<ProbeExpression> probes;
  for (size_t i = 0; i < texts.size(); ++i) {
    absl::StatusOr<ProbeExpression> probe = ParseProbe(texts[i]);
    if (!probe.ok()) {
      return absl::Status(probe.status().code(),
                          absl::StrCat("log[", i, "]: ", probe.status().message()));
    }
    probes.push_back(*std::move(probe));
  }
  return probes;
}

bool IsAmong(const ProbeExpression& probe, const FoundProbes& found) {
  return std::any_of(found.probes.begin(), found.probes.end(),
                     [&](const NamedProbe& other) { return other.probe == probe; });
}

absl::StatusOr<FoundProbes> FindProbes(const std::vector<ProbeExpression>& probes,
                                       const ProbePoints& points, size_t ranks) {
  FoundProbes found;
  found.by_rank.resize(ranks);
  int number = 0;
  for (const ProbeExpression& probe : probes) {
    std::vector<ProbeExpression> named;
    const bool any = probe.targets.size() == 1 && probe.targets[0].has_wildcard();
    if (any) {
      for (ProbeTarget& target : MatchingTargets(probe.targets[0], points)) {
        named.push_back({{std::move(target)}, probe.reduction});
      }
      if (named.empty()) {
        found.lacking.emplace_back(ToString(probe), NothingMatches(probe.targets[0], points));
      }
      std::erase_if(named, [&](const ProbeExpression& one) { return IsAmong(one, found); });
    } else {
      named.push_back(probe);
    }
    for (const ProbeExpression& one : named) {
      std::vector<ProbePoints::Places> places;
      absl::Status missing;
      for (const ProbeTarget& target : one.targets) {
        absl::StatusOr<ProbePoints::Places> of = PlacesOf(target, points);
        if (absl::IsNotFound(of.status()) || (any && absl::IsFailedPrecondition(of.status()))) {
          missing = of.status();
        }
        if (!of.ok() && missing.ok()) return of.status();
        if (of.ok()) places.push_back(*std::move(of));
      }
      if (!missing.ok()) {
        found.lacking.emplace_back(ToString(one), missing);
        continue;
      }
      if (one.reduction.kind == Reduction::kConfusion) {
        absl::Status s = CheckConfusion(points.TypeOf(places[0]), points.TypeOf(places[1]));
        if (!s.ok()) {
          return absl::Status(s.code(), absl::StrCat("'", ToString(one), "': ", s.message()));
        }
      }
      NamedProbe& result = found.probes.emplace_back(NamedProbe{one, {}, {}});
      for (ProbePoints::Places& of_target : places) {
        bool adds_up = false;
        for (size_t r = 0; r < ranks; ++r) {
          v1::RankProbe& of_rank = of_target[r];
          if (of_rank.points().empty()) continue;
          adds_up = adds_up || of_rank.adds_up();
          of_rank.set_probe(number);
          of_rank.set_reduction(ToString(one.reduction));
          found.by_rank[r].push_back(std::move(of_rank));
        }
        result.numbers.push_back(number++);
        result.adds_up.push_back(adds_up);
      }
    }
  }
  return found;
}

}  // namespace espalier
