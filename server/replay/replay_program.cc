#include "server/replay/replay_program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/name_pattern.h"
#include "planner/search/apply_rewrites.h"
#include "server/jobs/stored_values.h"

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

absl::StatusOr<std::unique_ptr<ReplayProgram>> ReplayProgram::Make(
    const AttemptTools& tools, const v1::TrainingSpec& spec, const v1::Plan& plan,
    const std::vector<ProbeExpression>& probes) {
  std::unique_ptr<ReplayProgram> made(new ReplayProgram);
  absl::StatusOr<PreparedJob> prepared =
      PrepareJob(*tools.registry, *tools.artifacts, *tools.dataset_roots, spec);
  if (!prepared.ok()) return prepared.status();
  made->prepared_ = *std::move(prepared);
  made->plan_ = plan;
  const Graph& graph = made->prepared_.graph;
  if (plan.graph_fingerprint() != GraphFingerprint(graph)) {
    return absl::FailedPreconditionError(
        "the recorded plan is for another graph than this version of Espalier makes of the job's "
        "model");
  }
  // As Attempt::Run does, so that the instructions are those of the recording.
  LoweringOptions options;
  options.optimizer = made->prepared_.optimizer;
  options.seed = spec.seed();
  options.columns = made->prepared_.columns;
  options.max_literal_bytes = kMaxLiteralBytes;
  options.workspace = tools.planner->workspace();
  options.evaluates = made->prepared_.evaluates;
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(*tools.registry, graph, plan, options);
  if (!lowered.ok()) return lowered.status();
  made->lowered_ = *std::move(lowered);
  absl::StatusOr<Graph> rewritten = graph;
  if (plan.rewrites_size() > 0) rewritten = RewrittenGraph(*tools.registry, graph, plan);
  if (!rewritten.ok()) return rewritten.status();
  const ProbePoints points(*rewritten, made->lowered_.training);
  if (absl::Status s = made->Find(*tools.registry, points, probes); !s.ok()) return s;
  return made;
}

absl::Status ReplayProgram::Find(const OpRegistry& registry, const ProbePoints& points,
                                 const std::vector<ProbeExpression>& probes) {
  std::vector<ProbeExpression> read = probes;
  std::vector<ReplacedWildcard> wildcards;
  std::map<std::string, absl::Status> lacking;  // of what the programs do not have
  if (std::any_of(probes.begin(), probes.end(),
                  [&](const ProbeExpression& probe) { return MayBeRemoved(probe, points); })) {
    absl::StatusOr<Graph> original =
        GraphBeforeRewrites(registry, prepared_.model, prepared_.graph, prepared_.batch_size);
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
    derived_ = *std::move(derived);
    lacking.insert(derived_.lacking().begin(), derived_.lacking().end());
    const std::vector<ProbeExpression> computed = derived_.probes();
    for (const ProbeExpression& probe : computed) lacking.erase(ToString(probe));
    std::erase_if(read, [&](const ProbeExpression& probe) {
      return std::find(computed.begin(), computed.end(), probe) != computed.end();
    });
    read.insert(read.end(), derived_.sources().begin(), derived_.sources().end());
  }
  absl::StatusOr<FoundProbes> found = FindProbes(read, points, lowered_.training.size());
  if (!found.ok()) return found.status();
  probes_ = *std::move(found);
  // A wildcard lacks nothing if a value that is computed again matches it.
  for (const ReplacedWildcard& wildcard : wildcards) {
    const auto why = lacking.find(ToString(wildcard.matches[0]));
    const bool any = std::any_of(
        wildcard.matches.begin(), wildcard.matches.end(),
        [&](const ProbeExpression& match) { return !lacking.contains(ToString(match)); });
    std::erase_if(probes_.lacking,
                  [&](const auto& lack) { return any && lack.first == wildcard.text; });
    for (auto& [probe, reason] : probes_.lacking) {
      if (probe == wildcard.text) reason = why->second;
    }
  }
  for (auto& [probe, reason] : probes_.lacking) {
    const auto why = lacking.find(probe);
    if (why == lacking.end()) continue;
    reason = why->second;
    lacking.erase(why);
  }
  probes_.lacking.insert(probes_.lacking.end(), lacking.begin(), lacking.end());
  return absl::OkStatus();
}

}  // namespace espalier
