#include "server/replay/evaluation_answers.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph_proto.h"
#include "ops/probe/elements.h"
#include "ops/probe/reduce.h"
#include "ops/tensor/view.h"

namespace espalier {
namespace {

int64_t UsedBatches(const EvaluationProbes::Target& target, const EvaluatedBatches& batches) {
  return target.whole ? batches.count : batches.count - 1;
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

}  // namespace

EvaluationAnswers::EvaluationAnswers(const EvaluationProbes* probes)
    : probes_(*probes),
      parts_(probes->targets.size()),
      sources_(&probes->sources),
      fragments_(&probes->fragments) {
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
  for (const ProbeExpression& source : probes_.fragments.sources()) {
    wanted.insert(TargetsToString(source));
  }
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
  return fragments_.Add(batch, std::move(tensors));
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
  const auto add = [&](const std::string& name, const Reduction& reduction) {
    v1::HistoryRow& row = rows.emplace_back();
    row.set_step(steps_done);
    row.set_name(absl::StrCat(probes_.batches.prefix, name));
    row.set_reduction(ToString(reduction));
    row.set_source(v1::HistoryRow::REPLAY);
    return row.mutable_value();
  };
  for (const NamedProbe& probe : probes_.found.probes) {
    absl::StatusOr<v1::ProbeValue> value = ValueOf(probe);
    if (!value.ok()) {
      return absl::Status(value.status().code(),
                          absl::StrCat(ToString(probe.probe), " of the evaluation after ",
                                       steps_done, " steps: ", value.status().message()));
    }
    *add(TargetsToString(probe.probe), probe.probe.reduction) = *std::move(value);
  }
  for (auto& [name, tensor] : fragments_.Finish()) {
    *add(name, Reduction{Reduction::kFull})->mutable_tensor() = std::move(tensor);
  }
  return rows;
}

}  // namespace espalier
