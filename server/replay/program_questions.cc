#include "server/replay/program_questions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"

namespace espalier {

std::optional<TensorType> TypeOfRead(const NamedProbe& probe, const FoundProbes& found,
                                     const std::vector<v1::Program>& programs) {
  for (size_t r = 0; r < programs.size(); ++r) {
    for (const v1::RankProbe& read : found.by_rank[r]) {
      if (read.probe() != probe.numbers[0] || read.points().empty()) continue;
      const v1::TensorSpec& spec = programs[r].buffers(read.points(0).buffer()).spec();
      const auto& dims = spec.global().empty() ? spec.dims() : spec.global();
      // What is subtracted or divided is F32 (worker/trainer/probe_reader.h).
      const bool computed = read.has_loss_scale() || !read.minus().empty();
      return TensorType{computed ? DType::kF32 : FromProto(spec.dtype()),
                        Dims(dims.begin(), dims.end())};
    }
  }
  return std::nullopt;
}

absl::StatusOr<TensorType> TypeOfSource(const ProbeExpression& source, const ProgramProbes& probes,
                                        const std::vector<v1::Program>& programs) {
  for (const NamedProbe& probe : probes.read.probes) {
    if (probe.probe != source) continue;
    if (const auto type = TypeOfRead(probe, probes.read, programs); type.has_value()) return *type;
  }
  for (const ProbeExpression& derived : probes.derived.probes()) {
    const std::optional<TensorType> type = probes.derived.TypeOf(derived);
    if (derived == source && type.has_value()) return *type;
  }
  for (const auto& [text, why] : probes.read.lacking) {
    if (text == ToString(source)) return why;
  }
  return absl::NotFoundError(absl::StrCat("'", ToString(source), "' was not found"));
}

namespace {

// The fragment for each name that its pattern matches in all inputs that have it. Errors name the
// graph.
absl::StatusOr<std::vector<GraphFragment>> ForEachName(const GraphFragment& fragment,
                                                       const ProbePoints& points) {
  std::optional<std::set<std::string>> common;
  for (const GraphFragment::Input& input : fragment.inputs) {
    const ProbeTarget& target = input.source.targets[0];
    if (!target.has_wildcard()) continue;
    std::set<std::string> names;
    for (const ProbeTarget& match : MatchingTargets(target, points)) names.insert(match.name);
    if (common.has_value()) {
      std::erase_if(*common, [&](const std::string& name) { return !names.contains(name); });
    } else {
      common = std::move(names);
    }
    if (!common->empty()) continue;
    const absl::Status none = NothingMatches(target, points);
    return absl::Status(none.code(), absl::StrCat("graph '", fragment.name, "': its input '",
                                                  input.name, "': ", none.message()));
  }
  std::vector<GraphFragment> expanded;
  for (const std::string& name : *common) expanded.push_back(fragment.For(name));
  return expanded;
}

}  // namespace

ExpandedFragments Expand(const std::vector<GraphFragment>& fragments, const ProbePoints& points,
                         LackingFragments* lacking) {
  ExpandedFragments made;
  for (const GraphFragment& fragment : fragments) {
    if (fragment.pattern.empty()) {
      made.fragments.push_back(fragment);
      continue;
    }
    absl::StatusOr<std::vector<GraphFragment>> expanded = ForEachName(fragment, points);
    if (!expanded.ok()) {
      lacking->emplace_back(fragment.name, expanded.status());
      continue;
    }
    for (GraphFragment& one : *expanded) {
      made.names_of[fragment.name].push_back(one.name);
      made.fragments.push_back(std::move(one));
    }
  }
  return made;
}

absl::Status CheckNamesOfAnswers(const std::vector<std::pair<std::string, TensorType>>& answers,
                                 const ProbePoints& points, const ProgramProbes& probes) {
  std::set<std::string> taken(points.values());
  taken.insert(points.parameters().begin(), points.parameters().end());
  for (const auto& [output, value] : points.outputs()) taken.insert(output);
  for (const NamedProbe& probe : probes.read.probes) taken.insert(TargetsToString(probe.probe));
  for (const ProbeExpression& probe : probes.derived.probes()) {
    taken.insert(TargetsToString(probe));
  }
  for (const auto& [name, type] : answers) {
    if (!taken.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "graph '", name, "': the model has a value of this name; give the graph another one"));
  }
  return absl::OkStatus();
}

void AddLackingPatterns(const std::map<std::string, std::vector<std::string>>& names_of,
                        const std::vector<GraphFragment>& left, LackingFragments* lacking) {
  for (const auto& [name, names] : names_of) {
    const bool any = std::any_of(left.begin(), left.end(), [&](const GraphFragment& fragment) {
      return std::find(names.begin(), names.end(), fragment.name) != names.end();
    });
    if (any) continue;
    const auto first = std::find_if(lacking->begin(), lacking->end(),
                                    [&](const auto& lack) { return lack.first == names[0]; });
    const absl::Status why = first->second;
    lacking->emplace_back(name, why);
  }
}

absl::StatusOr<ReplayQuestions> ParseQuestions(const OpRegistry& registry,
                                               const v1::ReplaySpec& spec) {
  ReplayQuestions questions;
  absl::StatusOr<std::vector<ProbeExpression>> probes =
      ParseProbes({spec.log().begin(), spec.log().end()});
  if (!probes.ok()) return probes.status();
  // Each is answered once; what wildcards match besides others is told by FindProbes.
  for (ProbeExpression& probe : *probes) {
    const auto& known = questions.probes;
    if (std::find(known.begin(), known.end(), probe) == known.end()) {
      questions.probes.push_back(std::move(probe));
    }
  }
  std::stable_partition(
      questions.probes.begin(), questions.probes.end(),
      [](const ProbeExpression& probe) { return !probe.targets[0].has_wildcard(); });
  absl::StatusOr<std::vector<GraphFragment>> fragments = ParseFragments(registry, spec.graphs());
  if (!fragments.ok()) return fragments.status();
  questions.fragments = *std::move(fragments);
  return questions;
}

absl::StatusOr<std::vector<v1::HistoryRow>> ProgramQuestions::Complete(
    std::vector<v1::HistoryRow> rows, int64_t step) const {
  absl::StatusOr<std::vector<v1::HistoryRow>> derived =
      probes.derived.Complete(std::move(rows), step, /*training=*/true);
  if (!derived.ok()) return derived;
  return fragments.Complete(*std::move(derived), step);
}

absl::StatusOr<ProgramQuestions> FindQuestions(
    const OpRegistry& registry, const ProbePoints& points, const std::vector<v1::Program>& programs,
    const ReplayQuestions& asked, const std::function<absl::StatusOr<Graph>()>& original_graph) {
  ProgramQuestions result;
  auto [left, names_of] = Expand(asked.fragments, points, &result.lacking_fragments);
  while (true) {
    std::vector<ProbeExpression> read = asked.probes;
    const std::vector<ProbeExpression> sources = SourcesOf(left);
    read.insert(read.end(), sources.begin(), sources.end());
    absl::StatusOr<ProgramProbes> probes =
        FindProgramProbes(registry, points, programs.size(), read, original_graph);
    if (!probes.ok()) return probes.status();
    const auto type_of = [&](const ProbeExpression& source) {
      return TypeOfSource(source, *probes, programs);
    };
    // What a fragment lacks that cannot be answered is not read for it.
    const size_t before = left.size();
    std::erase_if(left, [&](const GraphFragment& fragment) {
      absl::Status status = GraphFragments::Make(registry, {fragment}, type_of).status();
      if (status.ok()) return false;
      result.lacking_fragments.emplace_back(fragment.name, std::move(status));
      return true;
    });
    if (left.size() < before) continue;
    absl::StatusOr<GraphFragments> fragments = GraphFragments::Make(registry, left, type_of);
    if (!fragments.ok()) return fragments.status();
    if (absl::Status s = CheckNamesOfAnswers(fragments->answers(), points, *probes); !s.ok())
      return s;
    AddLackingPatterns(names_of, left, &result.lacking_fragments);
    result.probes = *std::move(probes);
    result.fragments = *std::move(fragments);
    return result;
  }
}

}  // namespace espalier
