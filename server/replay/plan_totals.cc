#include "server/replay/plan_totals.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

constexpr int64_t kRowBytes = 100;
constexpr int64_t kElementBytes = 8;
constexpr size_t kNamesInNote = 4;
constexpr size_t kCheckpointsInNote = 8;
// A guess.
constexpr double kFetchBytesPerSecond = 200e6;

// `elements`: of the tensor, or the counts of a confusion matrix, if the row has all of them.
int64_t BytesOfRow(const Reduction& reduction, int64_t elements) {
  switch (reduction.kind) {
    case Reduction::kHistogram:
      return kRowBytes + reduction.count * kElementBytes;
    case Reduction::kSample:
    case Reduction::kTopK:
      return kRowBytes + 2 * reduction.count * kElementBytes;
    case Reduction::kQuantiles:
      return kRowBytes + 2 * static_cast<int64_t>(reduction.quantiles.size()) * kElementBytes;
    case Reduction::kConfusion:
      return kRowBytes + elements * kElementBytes;
    case Reduction::kFull:
      return kRowBytes + elements * kElementBytes / 2;  // mostly F32
    default:
      return kRowBytes;
  }
}

// Of a confusion matrix of logits.
int64_t CountsOf(const Dims& logits) { return logits.empty() ? 1 : logits.back() * logits.back(); }

int64_t ElementsRead(const NamedProbe& probe, const ReplayProgram& program) {
  int64_t elements = 0;
  for (size_t r = 0; r < program.ranks(); ++r) {
    for (const v1::RankProbe& read : program.probes().by_rank[r]) {
      if (read.probe() != probe.numbers[0]) continue;
      for (const v1::ProbePoint& point : read.points()) {
        const v1::TensorSpec& part = program.lowered().training[r].buffers(point.buffer()).spec();
        if (probe.probe.reduction.kind == Reduction::kConfusion) {
          const auto& dims = part.global().empty() ? part.dims() : part.global();
          return CountsOf(Dims(dims.begin(), dims.end()));
        }
        int64_t of_part = 1;
        for (const int64_t size : part.dims()) of_part *= size;
        elements += of_part;
      }
    }
  }
  return elements;
}

}  // namespace

bool LacksAll(const ReplayQuestions& asked, const ReplayProgram& program) {
  const bool asks = !asked.probes.empty() || !asked.fragments.empty();
  return asks && program.probes().probes.empty() &&
         program.questions().probes.derived.probes().empty() &&
         program.questions().fragments.answers().empty();
}

void PlanTotals::AddRows(const ReplayProgram& program, int64_t steps) {
  const std::vector<NamedProbe>& read = program.probes().probes;
  const DerivedValues& derived = program.questions().probes.derived;
  std::vector<std::pair<ProbeExpression, int64_t>> rows;  // with elements of what is read
  // The last are sources, which are no answers.
  for (size_t i = 0; i + derived.sources().size() < read.size(); ++i) {
    rows.emplace_back(read[i].probe, ElementsRead(read[i], program));
  }
  for (const ProbeExpression& probe : derived.probes()) {
    const std::optional<TensorType> type = derived.TypeOf(probe);
    rows.emplace_back(probe, type.has_value() ? NumElements(type->dims) : 0);
  }
  const GraphFragments& fragments = program.questions().fragments;
  for (const ProbeExpression& source : fragments.sources()) {
    const auto last = std::find_if(rows.rbegin(), rows.rend(),
                                   [&](const auto& row) { return row.first == source; });
    if (last != rows.rend()) rows.erase(std::next(last).base());
  }
  const auto add = [&](const Reduction& reduction, int64_t elements) {
    estimate.set_rows(estimate.rows() + steps);
    estimate.set_bytes(estimate.bytes() + steps * BytesOfRow(reduction, elements));
  };
  for (const auto& [probe, elements] : rows) add(probe.reduction, elements);
  for (const auto& [name, type] : fragments.answers()) {
    add(Reduction{Reduction::kFull}, NumElements(type.dims));
  }
}

void PlanTotals::AddEvaluations(int64_t reported, const EvaluationProbes& probes,
                                int64_t evaluations) {
  int64_t bytes = reported * kRowBytes;
  for (const NamedProbe& probe : probes.found.probes) {
    const Dims& dims = probes.targets[static_cast<size_t>(probe.numbers[0])].batch.dims;
    const bool confusion = probe.probe.reduction.kind == Reduction::kConfusion;
    const int64_t all = NumElements(dims) * probes.batches.count;
    bytes += BytesOfRow(probe.probe.reduction, confusion ? CountsOf(dims) : all);
  }
  const auto answers = probes.fragments.answers();
  for (const auto& [name, type] : answers) {
    bytes += BytesOfRow(Reduction{Reduction::kFull}, NumElements(type.dims));
  }
  const int64_t rows = reported + static_cast<int64_t>(probes.found.probes.size() + answers.size());
  estimate.set_rows(estimate.rows() + rows * evaluations);
  estimate.set_bytes(estimate.bytes() + bytes * evaluations);
}

void PlanTotals::AddDerived(const DerivedValues& derived, const std::string& run) {
  if (derived.values().empty()) return;
  std::vector<std::string> named;
  for (const std::string& value : derived.values()) {
    if (named.size() < kNamesInNote) named.push_back(absl::StrCat("'", value, "'"));
  }
  const size_t more = derived.values().size() - named.size();
  estimate.add_notes(absl::StrCat(run, ": ", absl::StrJoin(named, ", "),
                                  more == 0 ? "" : absl::StrCat(" and ", more, " more"),
                                  derived.values().size() == 1 ? " is" : " are",
                                  " computed again beside the program: rewrites removed ",
                                  derived.values().size() == 1 ? "it" : "them", " from the plan"));
}

void PlanTotals::AddLeftOut(const std::set<std::string>& gradients, const std::string& run) {
  if (gradients.empty()) return;
  std::vector<std::string> named;
  for (const std::string& gradient : gradients) {
    if (named.size() < kNamesInNote) named.push_back(absl::StrCat("'", gradient, "'"));
  }
  const size_t more = gradients.size() - named.size();
  estimate.add_notes(absl::StrCat(run, ": '*' leaves out ", absl::StrJoin(named, ", "),
                                  more == 0 ? "" : absl::StrCat(" and ", more, " more"),
                                  ": rewrites removed ", gradients.size() == 1 ? "it" : "them",
                                  " from the plan; ask by name to compute ",
                                  gradients.size() == 1 ? "it" : "them", " beside the program"));
}

void PlanTotals::AddNames(const std::vector<ProbeExpression>& asked, const FoundProbes& found,
                          const std::string& run) {
  v1::ReplayEstimate::Lacking names;
  names.set_run(run);
  for (const auto& [probe, why] : found.lacking) {
    names.add_log(probe);
    names.add_reasons(std::string(why.message()));
    lacking[probe] = absl::NotFoundError(absl::StrCat("log: ", probe, ": ", why.message()));
  }
  for (const ProbeExpression& probe : asked) {
    const std::string text = ToString(probe);
    if (std::find(names.log().begin(), names.log().end(), text) == names.log().end()) {
      known.insert(text);
    }
  }
  if (!names.log().empty()) *estimate.add_lacking() = std::move(names);
}

void PlanTotals::AddFragments(const std::vector<GraphFragment>& asked_fragments,
                              const LackingFragments& lacking_fragments, const std::string& run) {
  v1::ReplayEstimate::Lacking names;
  names.set_run(run);
  for (const auto& [name, why] : lacking_fragments) {
    names.add_log(name);
    names.add_reasons(std::string(why.message()));
    lacking[name] = why;
  }
  for (const GraphFragment& fragment : asked_fragments) {
    if (std::find(names.log().begin(), names.log().end(), fragment.name) == names.log().end()) {
      known.insert(fragment.name);
    }
  }
  if (!names.log().empty()) *estimate.add_lacking() = std::move(names);
}

void PlanTotals::AddSegment(v1::ReplaySegment segment, double of_segment, size_t ranks) {
  segment.set_state(v1::REPLAY_WAITING);
  *estimate.add_segments() = std::move(segment);
  seconds += of_segment * static_cast<double>(ranks);
  longest = std::max(longest, of_segment);
}

double PlanTotals::AddFetched(const ReplayedRun& run, const std::vector<int64_t>& checkpoints) {
  int64_t bytes = 0;
  for (const int64_t checkpoint : checkpoints) {
    const v1::RecordedCheckpoint* const found = run.Find(checkpoint);
    if (found == nullptr || found->stored()) continue;
    auto& all = *estimate.mutable_fetched();
    const auto known = std::find_if(all.begin(), all.end(), [&](const auto& fetched) {
      return fetched.spool() == found->spool();
    });
    v1::ReplayEstimate::Fetched& fetched = known != all.end() ? *known : *estimate.add_fetched();
    fetched.set_spool(found->spool());
    fetched.set_checkpoints(fetched.checkpoints() + 1);
    fetched.set_bytes(fetched.bytes() + found->bytes());
    bytes += found->bytes();
  }
  return static_cast<double>(bytes) / kFetchBytesPerSecond;
}

void PlanTotals::AddElsewhere(const ReplayedRun& run, const std::vector<int64_t>& checkpoints) {
  std::map<std::string, std::vector<int64_t>> by_spool;
  for (const int64_t checkpoint : checkpoints) {
    by_spool[run.elsewhere.at(checkpoint)].push_back(checkpoint);
  }
  for (auto& [url, steps] : by_spool) {
    const size_t all = steps.size();
    if (all > kCheckpointsInNote) steps.resize(kCheckpointsInNote);
    estimate.add_notes(absl::StrCat(
        run.name(), all == 1 ? ": the checkpoint of step " : ": the checkpoints of steps ",
        absl::StrJoin(steps, ", "),
        all > steps.size() ? absl::StrCat(" and ", all - steps.size(), " more") : std::string(),
        all == 1 ? " is in " : " are in ", url,
        " only, which is not used now: start espalierd with --spool=", url));
  }
}

}  // namespace espalier
