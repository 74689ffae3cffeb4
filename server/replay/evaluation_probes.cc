#include "server/replay/evaluation_probes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ops/graph/graph_proto.h"
#include "ops/tensor/view.h"
#include "planner/lowering/probe_points.h"
#include "server/replay/batch_layouts.h"
#include "server/replay/program_probes.h"

namespace espalier {
namespace {

// Of the elements that are collected for one probe.
constexpr int64_t kMostCollectedBytes = int64_t{1} << 30;
// The same if collecting serves only to leave padding out.
constexpr int64_t kMostUnpaddedBytes = 64 << 20;

// Whether a reduction of parts of a tensor says nothing about the whole, so that all elements are
// needed.
bool NeedsAllElements(const Reduction& reduction) {
  switch (reduction.kind) {
    case Reduction::kFull:
    case Reduction::kQuantiles:
    case Reduction::kSample:
      return true;
    case Reduction::kHistogram:
      return !reduction.bounds.has_value();
    default:
      return false;
  }
}

absl::Status ChooseForm(const ProbeExpression& probe, const EvaluatedBatches& batches,
                        BatchLayout layout, EvaluationProbes::Target* target) {
  const int64_t bytes = batches.count * TensorSpec::Whole(target->batch).bytes();
  const bool confusion = probe.reduction.kind == Reduction::kConfusion;
  target->collected = NeedsAllElements(probe.reduction);
  if (target->collected && bytes > kMostCollectedBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToString(probe), ": all examples have ", bytes, " bytes of it, more than ",
        kMostCollectedBytes, "; ask for a histogram with bounds, or evaluate fewer examples"));
  }
  if (!batches.has_padding()) return absl::OkStatus();
  if (layout == BatchLayout::kRows) {
    target->rows_per_example = target->batch.dims[0] / batches.size;
    // Confusion sends whole rows, and few bytes of each.
    if (!confusion && bytes <= kMostUnpaddedBytes) target->collected = true;
    target->whole = target->collected || confusion;
  } else {
    target->whole = layout == BatchLayout::kNone;
  }
  if (target->whole || batches.count > 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ToString(probe), " cannot be told apart for the ", batches.examples,
      " examples, which do not fill a batch of ", batches.size, "; evaluate more examples"));
}

TensorType TypeRead(const v1::Program& program, const v1::RankProbe& read) {
  const v1::TensorSpec& spec = program.buffers(read.points(0).buffer()).spec();
  const auto& dims = spec.global().empty() ? spec.dims() : spec.global();
  return {FromProto(spec.dtype()), Dims(dims.begin(), dims.end())};
}

// The last `count` probes that were found are not asked for.
void SeparateSources(size_t count, EvaluationProbes* made) {
  std::vector<NamedProbe>& all = made->found.probes;
  const auto first = all.end() - static_cast<std::ptrdiff_t>(count);
  for (auto probe = all.begin(); probe != first; ++probe) {
    made->first_source += static_cast<int>(probe->numbers.size());
  }
  made->sources.probes.assign(first, all.end());
  all.erase(first, all.end());
  for (NamedProbe& source : made->sources.probes) source.numbers[0] -= made->first_source;
  for (const std::vector<v1::RankProbe>& of_rank : made->found.by_rank) {
    std::vector<v1::RankProbe>& sources = made->sources.by_rank.emplace_back();
    for (const v1::RankProbe& probe : of_rank) {
      if (probe.probe() < made->first_source) continue;
      sources.push_back(probe);
      sources.back().set_probe(probe.probe() - made->first_source);
    }
  }
}

ProbeExpression WholeTensor(const ProbeTarget& target) {
  return {{target}, Reduction{Reduction::kFull}};
}

// Types of the sources, by HistoryRow.name.
std::map<std::string, TensorType> TypesOfSources(const EvaluationProbes& made,
                                                 const std::vector<v1::Program>& programs) {
  std::map<std::string, TensorType> types;
  for (const NamedProbe& source : made.sources.probes) {
    types[TargetsToString(source.probe)] = *TypeOfRead(source, made.sources, programs);
  }
  return types;
}

// Adds probes that are computed from the sources, and what graphs read of such values.
absl::Status AddDerived(const OpRegistry& registry, const ProbePoints& points,
                        const std::map<std::string, TensorType>& types, const Graph& original,
                        const std::vector<ProbeExpression>& derived,
                        const std::vector<ProbeExpression>& of_fragments, EvaluationProbes* made) {
  const BatchLayouts layouts(registry, original, made->batches.size);
  std::vector<ProbeExpression> tensors = of_fragments;
  for (const ProbeExpression& probe : derived) {
    for (const ProbeTarget& target : probe.targets) {
      const ProbeExpression tensor = WholeTensor(target);
      const bool known = types.contains(TargetsToString(tensor)) ||
                         std::find(tensors.begin(), tensors.end(), tensor) != tensors.end();
      if (!known) tensors.push_back(tensor);
    }
  }
  absl::StatusOr<DerivedValues> values = DerivedValues::Make(registry, original, points, tensors);
  if (!values.ok()) return values.status();
  made->derived = *std::move(values);
  for (const ProbeExpression& probe : derived) {
    NamedProbe& named = made->found.probes.emplace_back(NamedProbe{probe, {}, {}});
    for (const ProbeTarget& one : probe.targets) {
      EvaluationProbes::Target target;
      target.computed = TargetsToString(WholeTensor(one));
      const auto source = types.find(target.computed);
      target.batch =
          source != types.end() ? source->second : *made->derived.TypeOf(WholeTensor(one));
      const BatchLayout layout = layouts.Of(one, target.batch.dims);
      absl::Status s = ChooseForm(probe, made->batches, layout, &target);
      if (!s.ok()) return s;
      named.numbers.push_back(static_cast<int>(made->targets.size()));
      named.adds_up.push_back(false);
      made->targets.push_back(std::move(target));
    }
  }
  return absl::OkStatus();
}

// The graphs of a replay that an evaluation can answer.
struct FoundFragments {
  ProgramProbes probes;  // of their sources
  EvaluationFragments fragments;
  LackingFragments lacking;
};

absl::Status CheckEvaluationInputs(const GraphFragment& fragment) {
  for (const GraphFragment::Input& input : fragment.inputs) {
    switch (input.source.targets[0].kind) {
      case ProbeTarget::kValue:
      case ProbeTarget::kBatch:
      case ProbeTarget::kParam:
        continue;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("graph '", fragment.name, "': its input '", input.name,
                         "' is not in an evaluation, which has values, batch(...) and param(...)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FoundFragments> FindFragments(
    const OpRegistry& registry, const ProbePoints& points, const std::vector<v1::Program>& programs,
    const std::vector<GraphFragment>& asked, const EvaluatedBatches& batches,
    const BatchLayouts& layouts, const std::function<absl::StatusOr<Graph>()>& original_graph) {
  FoundFragments found;
  if (asked.empty()) return found;
  std::vector<GraphFragment> answerable;
  for (const GraphFragment& fragment : asked) {
    absl::Status status = CheckEvaluationInputs(fragment);
    if (status.ok()) {
      answerable.push_back(fragment);
    } else {
      found.lacking.emplace_back(fragment.name, std::move(status));
    }
  }
  auto [left, names_of] = Expand(answerable, points, &found.lacking);
  absl::StatusOr<Graph> original = original_graph();
  if (!original.ok()) return original.status();
  const BatchLayouts original_layouts(registry, *original, batches.size);
  const auto find = [&](const std::vector<GraphFragment>& fragments) {
    return FindProgramProbes(registry, points, programs.size(), SourcesOf(fragments),
                             original_graph);
  };
  absl::StatusOr<ProgramProbes> probes = find(left);
  if (!probes.ok()) return probes.status();
  const auto input_of = [&](const ProbeExpression& source) -> absl::StatusOr<EvaluationInput> {
    absl::StatusOr<TensorType> type = TypeOfSource(source, *probes, programs);
    if (!type.ok()) return type.status();
    const std::vector<ProbeExpression> derived = probes->derived.probes();
    const bool is_derived = std::find(derived.begin(), derived.end(), source) != derived.end();
    const BatchLayouts& known = is_derived ? original_layouts : layouts;
    const ProbeTarget& target = source.targets[0];
    return EvaluationInput{*type, known.Of(target, type->dims), known.Twice(target, type->dims)};
  };
  std::erase_if(left, [&](const GraphFragment& fragment) {
    absl::Status status =
        EvaluationFragments::Make(registry, {fragment}, input_of, batches).status();
    if (status.ok()) return false;
    found.lacking.emplace_back(fragment.name, std::move(status));
    return true;
  });
  // What a fragment lacks that cannot be answered is not read for it.
  probes = find(left);
  if (!probes.ok()) return probes.status();
  absl::StatusOr<EvaluationFragments> made =
      EvaluationFragments::Make(registry, left, input_of, batches);
  if (!made.ok()) return made.status();
  found.fragments = *std::move(made);
  found.probes = *std::move(probes);
  AddLackingPatterns(names_of, left, &found.lacking);
  return found;
}

// The probes that programs are asked for, without what others are computed from.
std::vector<ProbeExpression> ReadOf(const ProgramProbes& probes) {
  std::vector<ProbeExpression> read;
  for (const NamedProbe& probe : probes.read.probes) read.push_back(probe.probe);
  read.resize(read.size() - probes.derived.sources().size());
  return read;
}

}  // namespace

std::string EvaluationPrefix(const v1::ReplaySpec& replay) {
  absl::string_view data = replay.evaluate().uri();
  absl::ConsumePrefix(&data, "artifact:");
  return data.empty() ? "evaluation." : absl::StrCat("evaluation[", data, "].");
}

absl::StatusOr<EvaluationProbes> FindEvaluationProbes(
    const OpRegistry& registry, const Graph& graph, const std::vector<v1::Program>& programs,
    const ReplayQuestions& asked, const EvaluatedBatches& batches,
    const std::function<absl::StatusOr<Graph>()>& original_graph) {
  for (const ProbeExpression& probe : asked.probes) {
    for (const ProbeTarget& target : probe.targets) {
      if (target.kind == ProbeTarget::kValue || target.kind == ProbeTarget::kBatch) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "'", ToString(probe), "' is not in an evaluation, which has values and ", "batch(...)"));
    }
  }
  const ProbePoints points(graph, programs);
  const BatchLayouts layouts(registry, graph, batches.size);
  absl::StatusOr<ProgramProbes> probes =
      FindProgramProbes(registry, points, programs.size(), asked.probes, original_graph);
  if (!probes.ok()) return probes.status();
  absl::StatusOr<FoundFragments> fragments =
      FindFragments(registry, points, programs, asked.fragments, batches, layouts, original_graph);
  if (!fragments.ok()) return fragments.status();
  absl::Status named = CheckNamesOfAnswers(fragments->fragments.answers(), points, *probes);
  if (!named.ok()) return named;
  std::vector<ProbeExpression> read = ReadOf(*probes);
  const auto first_source = static_cast<std::ptrdiff_t>(read.size());
  const std::vector<ProbeExpression> of_fragments = ReadOf(fragments->probes);
  for (const auto* sources :
       {&probes->derived.sources(), &of_fragments, &fragments->probes.derived.sources()}) {
    for (const ProbeExpression& source : *sources) {
      if (std::find(read.begin() + first_source, read.end(), source) == read.end()) {
        read.push_back(source);
      }
    }
  }
  absl::StatusOr<FoundProbes> found = FindProbes(read, points, programs.size());
  if (!found.ok()) return found.status();
  EvaluationProbes made;
  made.batches = batches;
  made.found = *std::move(found);
  made.found.lacking = probes->read.lacking;
  made.fragments = std::move(fragments->fragments);
  made.lacking_fragments = std::move(fragments->lacking);
  SeparateSources(read.size() - static_cast<size_t>(first_source), &made);
  for (const NamedProbe& probe : made.found.probes) {
    for (size_t t = 0; t < probe.numbers.size(); ++t) {
      EvaluationProbes::Target target;
      std::vector<v1::RankProbe*> reads;
      for (size_t r = 0; r < programs.size(); ++r) {
        for (v1::RankProbe& of_rank : made.found.by_rank[r]) {
          if (of_rank.probe() != probe.numbers[t]) continue;
          reads.push_back(&of_rank);
          target.batch = TypeRead(programs[r], of_rank);
        }
      }
      const BatchLayout layout = layouts.Of(probe.probe.targets[t], target.batch.dims);
      absl::Status s = ChooseForm(probe.probe, batches, layout, &target);
      if (!s.ok()) return s;
      for (v1::RankProbe* read : reads) {
        if (target.collected) read->set_reduction(ToString(Reduction{Reduction::kFull}));
      }
      made.targets.push_back(std::move(target));
    }
  }
  const std::vector<ProbeExpression> derived = probes->derived.probes();
  const std::vector<ProbeExpression> derived_inputs = fragments->probes.derived.probes();
  if (!derived.empty() || !derived_inputs.empty()) {
    absl::StatusOr<Graph> original = original_graph();
    if (!original.ok()) return original.status();
    absl::Status s = AddDerived(registry, points, TypesOfSources(made, programs), *original,
                                derived, derived_inputs, &made);
    if (!s.ok()) return s;
  }
  const auto without_last = [&](const std::string& name) {
    made.notes.push_back(absl::StrCat(batches.prefix, name, " is of the first ",
                                      (batches.count - 1) * batches.size, " of ", batches.examples,
                                      " examples: the others do not fill a batch"));
  };
  for (const NamedProbe& probe : made.found.probes) {
    bool whole = true;
    for (const int number : probe.numbers) {
      whole = whole && made.targets[static_cast<size_t>(number)].whole;
    }
    if (whole) continue;
    for (const int number : probe.numbers) made.targets[static_cast<size_t>(number)].whole = false;
    without_last(ToString(probe.probe));
  }
  for (const std::string& answer : made.fragments.without_last()) without_last(answer);
  return made;
}

}  // namespace espalier
