#include "server/replay/evaluation_answers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ops/graph/graph_proto.h"
#include "ops/probe/elements.h"
#include "ops/probe/reduce.h"
#include "ops/tensor/view.h"
#include "planner/lowering/probe_points.h"
#include "server/replay/program_probes.h"

namespace espalier {
namespace {

// Of the elements that are collected for one probe.
constexpr int64_t kMostCollectedBytes = int64_t{1} << 30;
// The same if collecting serves only to leave padding out.
constexpr int64_t kMostUnpaddedBytes = 64 << 20;

bool HasPadding(const EvaluatedBatches& batches) {
  return batches.examples < batches.count * batches.size;
}

// How the elements of a batch's tensor belong to its examples.
enum class Layout {
  kNone,      // they do not: statistics of the batch
  kRows,      // dimension 0 has rows of the first example, then of the second
  kNotKnown,  // in another way, or the model is for this batch size only
};

// Tells apart by what a batch of twice the size changes.
class Layouts {
 public:
  Layouts(const OpRegistry& registry, const Graph& graph, int64_t size)
      : graph_(graph), doubled_(graph), size_(size) {
    for (size_t v = 0; v < graph.values().size(); ++v) {
      Value& value = doubled_.mutable_value(static_cast<ValueId>(v));
      if (value.kind != ValueKind::kInput || value.type.dims.empty()) continue;
      if (value.type.dims[0] == size) value.type.dims[0] = 2 * size;
    }
    known_ = BindAndInfer(registry, 2 * size, &doubled_).ok();
  }

  Layout Of(const ProbeTarget& target, const Dims& dims) const {
    if (dims.empty()) return Layout::kNone;
    const bool rows = dims[0] % size_ == 0;
    if (target.kind == ProbeTarget::kBatch) return rows ? Layout::kRows : Layout::kNotKnown;
    const ValueId value = graph_.FindValue(target.name);
    if (!known_ || value == kNoValue) return rows ? Layout::kNotKnown : Layout::kNone;
    const Dims& twice = doubled_.value(value).type.dims;
    if (twice == dims) return Layout::kNone;
    Dims expected = dims;
    expected[0] *= 2;
    return rows && twice == expected ? Layout::kRows : Layout::kNotKnown;
  }

 private:
  const Graph& graph_;
  Graph doubled_;
  const int64_t size_;
  bool known_ = false;
};

int64_t UsedBatches(const EvaluationProbes::Target& target, const EvaluatedBatches& batches) {
  return target.whole ? batches.count : batches.count - 1;
}

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
                        Layout layout, EvaluationProbes::Target* target) {
  const int64_t bytes = batches.count * TensorSpec::Whole(target->batch).bytes();
  const bool confusion = probe.reduction.kind == Reduction::kConfusion;
  target->collected = NeedsAllElements(probe.reduction);
  if (target->collected && bytes > kMostCollectedBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToString(probe), ": all examples have ", bytes, " bytes of it, more than ",
        kMostCollectedBytes, "; ask for a histogram with bounds, or evaluate fewer examples"));
  }
  if (!HasPadding(batches)) return absl::OkStatus();
  if (layout == Layout::kRows) {
    target->rows_per_example = target->batch.dims[0] / batches.size;
    // Confusion sends whole rows, and few bytes of each.
    if (!confusion && bytes <= kMostUnpaddedBytes) target->collected = true;
    target->whole = target->collected || confusion;
  } else {
    target->whole = layout == Layout::kNone;
  }
  if (target->whole || batches.count > 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ToString(probe), " cannot be told apart for the ", batches.examples,
      " examples, which do not fill a batch of ", batches.size, "; evaluate more examples"));
}

// Moves a batch's part to where it is among all batches.
void Stack(const EvaluationProbes::Target& target, int64_t used, int64_t batch,
           v1::ProbePart* part) {
  const Dims& dims = target.batch.dims;
  const int64_t rows = dims.empty() ? 1 : dims[0];
  if (dims.empty()) part->add_dims(0);
  part->set_dims(0, rows * used);
  for (v1::ProbePart::Box& box : *part->mutable_boxes()) {
    if (dims.empty()) {
      box.add_offset(0);
      box.mutable_values()->add_dims(1);
    }
    box.set_offset(0, box.offset(0) + batch * rows);
  }
  if (!part->has_elements()) return;
  for (int64_t& index : *part->mutable_elements()->mutable_indices()) {
    index += batch * NumElements(dims);
  }
}

TensorView ViewOf(v1::TensorValue* value) {
  return {value->mutable_data()->data(),
          TensorSpec::Whole(
              {FromProto(value->dtype()), Dims(value->dims().begin(), value->dims().end())})};
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

// Adds probes that are computed from the sources.
absl::Status AddDerived(const OpRegistry& registry, const ProbePoints& points,
                        const std::vector<v1::Program>& programs, const Graph& original,
                        const std::vector<ProbeExpression>& derived, EvaluationProbes* made) {
  const auto in_full = [](const ProbeTarget& target) {
    return ProbeExpression{{target}, Reduction{Reduction::kFull}};
  };
  std::map<std::string, TensorType> types;  // of the sources
  for (const NamedProbe& source : made->sources.probes) {
    for (size_t r = 0; r < programs.size(); ++r) {
      for (const v1::RankProbe& read : made->sources.by_rank[r]) {
        if (read.probe() != source.numbers[0]) continue;
        types[TargetsToString(source.probe)] = TypeRead(programs[r], read);
      }
    }
  }
  const Layouts layouts(registry, original, made->batches.size);
  std::vector<ProbeExpression> tensors;
  for (const ProbeExpression& probe : derived) {
    for (const ProbeTarget& target : probe.targets) {
      if (!types.contains(TargetsToString(in_full(target)))) tensors.push_back(in_full(target));
    }
  }
  absl::StatusOr<DerivedValues> values = DerivedValues::Make(registry, original, points, tensors);
  if (!values.ok()) return values.status();
  made->derived = *std::move(values);
  for (const ProbeExpression& probe : derived) {
    NamedProbe& named = made->found.probes.emplace_back(NamedProbe{probe, {}, {}});
    for (const ProbeTarget& one : probe.targets) {
      EvaluationProbes::Target target;
      target.computed = TargetsToString(in_full(one));
      const auto source = types.find(target.computed);
      target.batch = source != types.end() ? source->second : *made->derived.TypeOf(in_full(one));
      const Layout layout = layouts.Of(one, target.batch.dims);
      absl::Status s = ChooseForm(probe, made->batches, layout, &target);
      if (!s.ok()) return s;
      named.numbers.push_back(static_cast<int>(made->targets.size()));
      named.adds_up.push_back(false);
      made->targets.push_back(std::move(target));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string EvaluationPrefix(const v1::ReplaySpec& replay) {
  absl::string_view data = replay.evaluate().uri();
  absl::ConsumePrefix(&data, "artifact:");
  return data.empty() ? "evaluation." : absl::StrCat("evaluation[", data, "].");
}

absl::StatusOr<EvaluationProbes> FindEvaluationProbes(
    const OpRegistry& registry, const Graph& graph, const std::vector<v1::Program>& programs,
    const std::vector<ProbeExpression>& probes, const EvaluatedBatches& batches,
    const std::function<absl::StatusOr<Graph>()>& original_graph) {
  for (const ProbeExpression& probe : probes) {
    for (const ProbeTarget& target : probe.targets) {
      if (target.kind == ProbeTarget::kValue || target.kind == ProbeTarget::kBatch) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "'", ToString(probe), "' is not in an evaluation, which has values and ", "batch(...)"));
    }
  }
  const ProbePoints points(graph, programs);
  absl::StatusOr<ProgramProbes> found =
      FindProgramProbes(registry, points, programs.size(), probes, original_graph);
  if (!found.ok()) return found.status();
  EvaluationProbes made;
  made.batches = batches;
  made.found = std::move(found->read);
  SeparateSources(found->derived.sources().size(), &made);
  const Layouts layouts(registry, graph, batches.size);
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
      const Layout layout = layouts.Of(probe.probe.targets[t], target.batch.dims);
      absl::Status s = ChooseForm(probe.probe, batches, layout, &target);
      if (!s.ok()) return s;
      for (v1::RankProbe* read : reads) {
        if (target.collected) read->set_reduction(ToString(Reduction{Reduction::kFull}));
      }
      made.targets.push_back(std::move(target));
    }
  }
  const std::vector<ProbeExpression> derived = found->derived.probes();
  if (!derived.empty()) {
    absl::StatusOr<Graph> original = original_graph();
    if (!original.ok()) return original.status();
    absl::Status s = AddDerived(registry, points, programs, *original, derived, &made);
    if (!s.ok()) return s;
  }
  for (const NamedProbe& probe : made.found.probes) {
    bool whole = true;
    for (const int number : probe.numbers) {
      whole = whole && made.targets[static_cast<size_t>(number)].whole;
    }
    if (whole) continue;
    for (const int number : probe.numbers) made.targets[static_cast<size_t>(number)].whole = false;
    made.notes.push_back(absl::StrCat(batches.prefix, ToString(probe.probe), " is of the first ",
                                      (batches.count - 1) * batches.size, " of ", batches.examples,
                                      " examples: the others do not fill a batch"));
  }
  return made;
}

EvaluationAnswers::EvaluationAnswers(const EvaluationProbes* probes)
    : probes_(*probes), parts_(probes->targets.size()), sources_(&probes->sources) {
  for (const std::vector<v1::RankProbe>& of_rank : probes_.found.by_rank) {
    auto& expected = expected_.emplace_back(static_cast<size_t>(probes_.first_source));
    for (const v1::RankProbe& probe : of_rank) {
      if (probe.probe() >= probes_.first_source) continue;
      expected[static_cast<size_t>(probe.probe())].assign(
          static_cast<size_t>(probes_.batches.count), true);
      missing_ += probes_.batches.count;
    }
  }
  if (probes_.sources.probes.empty()) return;
  computed_.resize(static_cast<size_t>(probes_.batches.count));
  missing_ += probes_.batches.count;
}

absl::Status EvaluationAnswers::Add(size_t rank, const v1::ProbeResults& results) {
  const auto refused = [&](int number, absl::string_view what) {
    return absl::InternalError(absl::StrCat("rank ", rank, " sends probe ", number, " of batch ",
                                            results.step(), " of an evaluation, ", what));
  };
  const auto batch = static_cast<size_t>(results.step());
  v1::ProbeResults sources;
  for (const v1::RankProbeResult& result : results.results()) {
    if (result.probe() >= probes_.first_source && batch < computed_.size() && !computed_[batch]) {
      *sources.add_results() = result;
      continue;
    }
    const auto number = static_cast<size_t>(result.probe());
    if (rank >= expected_.size() || number >= expected_[rank].size() ||
        batch >= expected_[rank][number].size() || !expected_[rank][number][batch]) {
      return refused(result.probe(), "which it was not asked for");
    }
    expected_[rank][number][batch] = false;
    --missing_;
    const EvaluationProbes::Target& target = probes_.targets[number];
    const int64_t used = UsedBatches(target, probes_.batches);
    if (results.step() >= used) continue;
    v1::ProbePart part = result.part();
    const auto dimensions = static_cast<int>(target.batch.dims.size());
    bool fits = Dims(part.dims().begin(), part.dims().end()) == target.batch.dims;
    for (const v1::ProbePart::Box& box : part.boxes()) {
      fits = fits && box.offset_size() == dimensions && box.values().dims_size() == dimensions;
    }
    if (!fits) return refused(result.probe(), "with other dimensions than its program's");
    Stack(target, used, results.step(), &part);
    parts_[number].push_back(std::move(part));
  }
  if (sources.results().empty()) return absl::OkStatus();
  sources.set_step(results.step());
  return AddSources(rank, sources);
}

absl::Status EvaluationAnswers::AddSources(size_t rank, const v1::ProbeResults& results) {
  v1::ProbeResults numbered = results;
  for (v1::RankProbeResult& result : *numbered.mutable_results()) {
    result.set_probe(result.probe() - probes_.first_source);
  }
  absl::StatusOr<std::vector<v1::HistoryRow>> rows = sources_.Add(rank, numbered);
  if (!rows.ok() || rows->empty()) return rows.status();
  const int64_t batch = results.step();
  computed_[static_cast<size_t>(batch)] = true;
  --missing_;
  std::set<std::string> wanted;
  for (const EvaluationProbes::Target& target : probes_.targets) wanted.insert(target.computed);
  std::map<std::string, v1::TensorValue> tensors;
  for (const v1::HistoryRow& row : *rows) {
    if (wanted.contains(row.name())) tensors[row.name()] = row.value().tensor();
  }
  rows = probes_.derived.Complete(*std::move(rows), batch, /*training=*/false);
  if (!rows.ok()) return rows.status();
  for (v1::HistoryRow& row : *rows) tensors[row.name()] = row.value().tensor();
  for (const NamedProbe& probe : probes_.found.probes) {
    for (const int number : probe.numbers) {
      const EvaluationProbes::Target& target = probes_.targets[static_cast<size_t>(number)];
      const int64_t used = UsedBatches(target, probes_.batches);
      if (target.computed.empty() || batch >= used) continue;
      const TensorView view = ViewOf(&tensors.at(target.computed));
      const Reduction full{Reduction::kFull};
      PartReducer reducer(target.collected ? full : probe.probe.reduction, view.dtype(),
                          view.dims(), /*adds_up=*/false, /*only_part=*/true);
      if (absl::Status s = reducer.Add(view); !s.ok()) return s;
      v1::ProbePart part = reducer.Take();
      Stack(target, used, batch, &part);
      parts_[static_cast<size_t>(number)].push_back(std::move(part));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::TensorValue> EvaluationAnswers::Collect(const NamedProbe& probe, size_t target) {
  const auto number = static_cast<size_t>(probe.numbers[target]);
  absl::StatusOr<v1::ProbeValue> value = espalier::Finish(
      Reduction{Reduction::kFull}, std::move(parts_[number]), probe.adds_up[target]);
  if (!value.ok()) return value.status();
  v1::TensorValue whole = std::move(*value->mutable_tensor());
  const int64_t rows = probes_.targets[number].rows_per_example * probes_.batches.examples;
  if (rows > 0 && rows < whole.dims(0)) {
    whole.mutable_data()->resize(whole.data().size() / static_cast<size_t>(whole.dims(0)) *
                                 static_cast<size_t>(rows));
    whole.set_dims(0, rows);
  }
  return whole;
}

absl::StatusOr<v1::ProbePart> EvaluationAnswers::LabelsOf(const NamedProbe& probe) {
  constexpr int64_t kNoClass = -1;
  const auto number = static_cast<size_t>(probe.numbers[1]);
  const Dims all(parts_[number][0].dims().begin(), parts_[number][0].dims().end());
  absl::StatusOr<v1::TensorValue> labels = Collect(probe, 1);
  if (!labels.ok()) return labels.status();
  const TensorView view = ViewOf(&*labels);
  if (!IsInteger(view.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("confusion: labels are ", Name(view.dtype()), "; expected whole numbers"));
  }
  std::vector<int64_t> classes;
  classes.reserve(static_cast<size_t>(NumElements(all)));
  probe::ForElements(view, [&](double label) { classes.push_back(static_cast<int64_t>(label)); });
  classes.resize(static_cast<size_t>(NumElements(all)), kNoClass);
  PartReducer whole(Reduction{Reduction::kFull}, DType::kI64, all, /*adds_up=*/false,
                    /*only_part=*/true);
  absl::Status s = whole.Add({classes.data(), TensorSpec::Whole({DType::kI64, all})});
  if (!s.ok()) return s;
  return whole.Take();
}

absl::StatusOr<v1::ProbeValue> EvaluationAnswers::ValueOf(const NamedProbe& probe) {
  const auto number = static_cast<size_t>(probe.numbers[0]);
  const Reduction& reduction = probe.probe.reduction;
  if (reduction.kind == Reduction::kConfusion) {
    absl::StatusOr<v1::ProbePart> labels = LabelsOf(probe);
    if (!labels.ok()) return labels.status();
    return FinishConfusion(std::move(parts_[number]), {*std::move(labels)});
  }
  if (!probes_.targets[number].collected) {
    return espalier::Finish(reduction, std::move(parts_[number]), probe.adds_up[0]);
  }
  absl::StatusOr<v1::TensorValue> whole = Collect(probe, 0);
  if (!whole.ok()) return whole.status();
  v1::ProbeValue value;
  if (reduction.kind == Reduction::kFull) {
    *value.mutable_tensor() = *std::move(whole);
    return value;
  }
  const TensorView view = ViewOf(&*whole);
  PartReducer reducer(reduction, view.dtype(), view.dims(), /*adds_up=*/false, /*only_part=*/true);
  if (absl::Status s = reducer.Add(view); !s.ok()) return s;
  return espalier::Finish(reduction, {reducer.Take()}, /*adds_up=*/false);
}

absl::StatusOr<std::vector<v1::HistoryRow>> EvaluationAnswers::Finish(int64_t steps_done) {
  if (missing_ > 0) {
    return absl::InternalError(absl::StrCat("the workers ended the evaluation after ", steps_done,
                                            " steps without ", missing_, " of its answers"));
  }
  std::vector<v1::HistoryRow> rows;
  for (const NamedProbe& probe : probes_.found.probes) {
    absl::StatusOr<v1::ProbeValue> value = ValueOf(probe);
    if (!value.ok()) {
      return absl::Status(value.status().code(),
                          absl::StrCat(ToString(probe.probe), " of the evaluation after ",
                                       steps_done, " steps: ", value.status().message()));
    }
    v1::HistoryRow& row = rows.emplace_back();
    row.set_step(steps_done);
    row.set_name(absl::StrCat(probes_.batches.prefix, TargetsToString(probe.probe)));
    row.set_reduction(ToString(probe.probe.reduction));
    row.set_source(v1::HistoryRow::REPLAY);
    *row.mutable_value() = *std::move(value);
  }
  return rows;
}

}  // namespace espalier
