#include "server/replay/probe_set.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/name_pattern.h"

namespace espalier {
namespace {

// The names that a target may mean, of those that there are.
std::vector<ProbeTarget> Expand(const ProbeTarget& target, const ProbePoints& points) {
  std::vector<ProbeTarget> found;
  const auto add = [&](const std::set<std::string>& names) {
    for (const std::string& name : names) {
      if (!MatchesPattern(target.name, name)) continue;
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
      break;
    case ProbeTarget::kGrad:
      add(points.gradients());
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

absl::StatusOr<FoundProbes> FindProbes(const std::vector<ProbeExpression>& probes,
                                       const ProbePoints& points, size_t ranks) {
  FoundProbes found;
  found.by_rank.resize(ranks);
  int number = 0;
  for (const ProbeExpression& probe : probes) {
    std::vector<ProbeExpression> named;
    const bool any = probe.targets.size() == 1 && probe.targets[0].has_wildcard();
    if (any) {
      for (ProbeTarget& target : Expand(probe.targets[0], points)) {
        named.push_back({{std::move(target)}, probe.reduction});
      }
      if (named.empty()) {
        found.lacking.emplace_back(ToString(probe), absl::NotFoundError("no name matches"));
      }
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
