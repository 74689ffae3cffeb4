#include "server/replay/step_answers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/probe/reduce.h"

namespace espalier {

StepAnswers::StepAnswers(const FoundProbes* probes) : probes_(*probes) {
  for (const NamedProbe& probe : probes_.probes) numbers_ += probe.numbers.size();
  for (const std::vector<v1::RankProbe>& of_rank : probes_.by_rank) {
    std::vector<bool>& expected = expected_.emplace_back(numbers_, false);
    for (const v1::RankProbe& probe : of_rank) {
      expected[static_cast<size_t>(probe.probe())] = true;
      ++all_;
    }
  }
}

absl::StatusOr<std::vector<v1::HistoryRow>> StepAnswers::Add(size_t rank,
                                                             const v1::ProbeResults& results) {
  auto [found, is_new] = steps_.try_emplace(results.step());
  Step& step = found->second;
  if (is_new) {
    step.parts.resize(numbers_);
    step.sent = expected_;
    step.missing = all_;
  }
  for (const v1::RankProbeResult& result : results.results()) {
    const auto number = static_cast<size_t>(result.probe());
    if (rank >= step.sent.size() || number >= numbers_ || !step.sent[rank][number]) {
      return absl::InternalError(absl::StrCat("rank ", rank, " sends probe ", result.probe(),
                                              " of step ", results.step(),
                                              ", which it was not asked for"));
    }
    step.sent[rank][number] = false;
    --step.missing;
    step.parts[number].push_back(result.part());
  }
  if (step.missing > 0) return std::vector<v1::HistoryRow>();
  Step whole = std::move(step);
  steps_.erase(found);
  return Finish(results.step(), std::move(whole));
}

absl::StatusOr<std::vector<v1::HistoryRow>> StepAnswers::Finish(int64_t number, Step step) const {
  std::vector<v1::HistoryRow> rows;
  for (const NamedProbe& probe : probes_.probes) {
    std::vector<std::vector<v1::ProbePart>> parts;
    for (const int target : probe.numbers) {
      parts.push_back(std::move(step.parts[static_cast<size_t>(target)]));
    }
    absl::StatusOr<v1::ProbeValue> value =
        probe.probe.reduction.kind == Reduction::kConfusion
            ? FinishConfusion(std::move(parts[0]), std::move(parts[1]))
            : espalier::Finish(probe.probe.reduction, std::move(parts[0]), probe.adds_up[0]);
    if (!value.ok()) {
      return absl::Status(
          value.status().code(),
          absl::StrCat(ToString(probe.probe), " of step ", number, ": ", value.status().message()));
    }
    v1::HistoryRow& row = rows.emplace_back();
    row.set_step(number);
    row.set_name(TargetsToString(probe.probe));
    row.set_reduction(ToString(probe.probe.reduction));
    row.set_source(v1::HistoryRow::REPLAY);
    *row.mutable_value() = *std::move(value);
  }
  return rows;
}

}  // namespace espalier
