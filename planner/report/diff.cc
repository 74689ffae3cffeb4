// DiffPlans (diff.h).
#include "planner/report/diff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/report/format.h"

namespace espalier {
namespace {

// Here NaN, which an edited plan may hold, equals itself.
bool Differs(double a, double b) { return !(a == b || (std::isnan(a) && std::isnan(b))); }

OperatorChange::Side SideOf(const v1::OperatorPlan& op) {
  return {
      op.op(), SplitText(op), {op.devices().begin(), op.devices().end()}, op.predicted_seconds()};
}

// Operators by name, and by occurrence if an edited plan repeats a name.
std::map<std::pair<std::string, int>, int> IndexOperators(const v1::Plan& plan,
                                                          std::vector<int>* turns) {
  std::map<std::string, int> seen;
  std::map<std::pair<std::string, int>, int> index;
  for (int i = 0; i < plan.operators_size(); ++i) {
    const std::string& node = plan.operators(i).node();
    turns->push_back(seen[node]++);
    index[{node, turns->back()}] = i;
  }
  return index;
}

void DiffOperators(const v1::Plan& a, const v1::Plan& b, PlanDiff* out) {
  std::vector<int> turns_a, turns_b;
  const auto index_a = IndexOperators(a, &turns_a), index_b = IndexOperators(b, &turns_b);
  for (int i = 0; i < a.operators_size(); ++i) {
    const std::string& node = a.operators(i).node();
    const OperatorChange::Side side = SideOf(a.operators(i));
    const auto match = index_b.find({node, turns_a[i]});
    if (match == index_b.end()) {
      out->operators.push_back({OperatorChange::kOnlyInA, node, side, {}});
      continue;
    }
    const OperatorChange::Side other = SideOf(b.operators(match->second));
    const bool same_choice = std::tie(side.op, side.split, side.devices) ==
                             std::tie(other.op, other.split, other.devices);
    if (!same_choice) {
      out->operators.push_back({OperatorChange::kChanged, node, side, other});
    } else if (Differs(side.seconds, other.seconds)) {
      ++out->retimed;
      out->retimed_seconds += other.seconds - side.seconds;
    }
  }
  for (int i = 0; i < b.operators_size(); ++i) {
    const std::string& node = b.operators(i).node();
    if (index_a.contains({node, turns_b[i]})) continue;
    out->operators.push_back({OperatorChange::kOnlyInB, node, {}, SideOf(b.operators(i))});
  }
  out->operators_a = a.operators_size();
  out->operators_b = b.operators_size();
}

std::string DeviceText(const v1::Device& device) {
  std::string text = KindText(device.kind());
  if (!device.model().empty()) absl::StrAppend(&text, " ", device.model());
  if (device.memory_bytes() > 0) {
    absl::StrAppend(&text, ", ", ReadableBytes(static_cast<double>(device.memory_bytes())));
  }
  if (device.matmul_flops() > 0)
    absl::StrAppendFormat(&text, ", %.4g FLOP/s", device.matmul_flops());
  if (device.memory_bandwidth() > 0) {
    absl::StrAppendFormat(&text, ", %.4g B/s", device.memory_bandwidth());
  }
  if (device.op_overhead_seconds() > 0) {
    absl::StrAppend(&text, ", ", ReadableSeconds(device.op_overhead_seconds()), " per operator");
  }
  if (device.threads() > 0) absl::StrAppend(&text, ", ", device.threads(), " threads");
  return text;
}

// Compares the printed text, because measured rates differ between runs in digits that nobody
// reads.
void DiffDevices(const v1::Plan& a, const v1::Plan& b, PlanDiff* out) {
  for (int i = 0; i < std::max(a.devices_size(), b.devices_size()); ++i) {
    DeviceChange change{i, i < a.devices_size() ? DeviceText(a.devices(i)) : "",
                        i < b.devices_size() ? DeviceText(b.devices(i)) : ""};
    if (change.a != change.b) out->devices.push_back(std::move(change));
  }
}

// (kind and degree, tensor, consumer, dimension, occurrence) -> bytes.
using ParallelKey = std::tuple<std::string, std::string, std::string, int, int>;
std::map<ParallelKey, double> IndexParallel(const v1::Plan& plan) {
  std::map<ParallelKey, double> index;
  for (const v1::ParallelOperator& op : plan.parallel_operators()) {
    ParallelKey key{KindAndDegree(op), op.tensor(), op.consumer(), op.dimension(), 0};
    while (!index.try_emplace(key, op.bytes()).second) ++std::get<4>(key);
  }
  return index;
}

void DiffParallel(const v1::Plan& a, const v1::Plan& b, PlanDiff* out) {
  const std::map<ParallelKey, double> in_a = IndexParallel(a), in_b = IndexParallel(b);
  std::map<std::string, ParallelChange> by_kind;
  for (const auto& [key, bytes] : in_a) {
    ParallelChange& change = by_kind[std::get<0>(key)];
    const auto match = in_b.find(key);
    if (match == in_b.end()) {
      ++change.removed;
      change.removed_bytes += bytes;
    } else if (Differs(bytes, match->second)) {
      ++change.altered;
      change.altered_bytes += match->second - bytes;
    }
  }
  for (const auto& [key, bytes] : in_b) {
    if (in_a.contains(key)) continue;
    ParallelChange& change = by_kind[std::get<0>(key)];
    ++change.added;
    change.added_bytes += bytes;
  }
  for (auto& [kind, change] : by_kind) {
    if (change.removed + change.added + change.altered == 0) continue;
    change.kind = kind;
    out->parallel.push_back(std::move(change));
  }
}

void DiffAlternatives(const v1::Plan& a, const v1::Plan& b, PlanDiff* out) {
  auto side = [](const v1::Alternative& alternative) {
    return AlternativeChange::Side{alternative.prediction().step_seconds(),
                                   alternative.refused().empty()};
  };
  std::map<std::string, AlternativeChange> by_name;
  for (const auto& alternative : a.alternatives())
    by_name[alternative.name()].a = side(alternative);
  for (const auto& alternative : b.alternatives())
    by_name[alternative.name()].b = side(alternative);
  for (auto& [name, change] : by_name) {
    const bool in_both = change.a.has_value() && change.b.has_value();
    if (in_both && change.a->fits == change.b->fits &&
        !Differs(change.a->step_seconds, change.b->step_seconds)) {
      continue;
    }
    change.name = name;
    out->alternatives.push_back(std::move(change));
  }
}

double AllBytes(const v1::Prediction& prediction) {
  double sum = 0;
  for (int64_t bytes : prediction.peak_bytes()) sum += static_cast<double>(bytes);
  return sum;
}

std::vector<NumberPair> PredictionPairs(const v1::Prediction& a, const v1::Prediction& b) {
  return {
      {"step", NumberPair::kSeconds, a.step_seconds(), b.step_seconds()},
      {"compute", NumberPair::kSeconds, a.compute_seconds(), b.compute_seconds()},
      {"communication", NumberPair::kSeconds, a.communication_seconds(), b.communication_seconds()},
      {"moved", NumberPair::kBytes, a.bytes_moved(), b.bytes_moved()},
      {"memory", NumberPair::kBytes, static_cast<double>(PeakBytes(a)),
       static_cast<double>(PeakBytes(b))},
      {"memory of all", NumberPair::kBytes, AllBytes(a), AllBytes(b)},
  };
}

std::vector<TextPair> SearchPairs(const v1::SearchSummary& a, const v1::SearchSummary& b) {
  std::vector<TextPair> pairs = {
      {"budget", absl::StrCat(a.budget()), absl::StrCat(b.budget())},
      {"alpha", absl::StrFormat("%.10g", a.alpha()), absl::StrFormat("%.10g", b.alpha())},
      {"seed", absl::StrCat(a.seed()), absl::StrCat(b.seed())},
      {"proposals", absl::StrCat(a.proposals()), absl::StrCat(b.proposals())},
      {"accepted", absl::StrCat(a.accepted()), absl::StrCat(b.accepted())},
  };
  std::erase_if(pairs, [](const TextPair& pair) { return pair.a == pair.b; });
  return pairs;
}

// "12, 1.5 GiB copied".
std::string SwapText(const FitTotal& fit) {
  if (fit.swaps == 0) return "none";
  return absl::StrCat(fit.swaps, ", ", ReadableBytes(fit.copied_bytes), " copied");
}

// "4: 0-1 | 2-3".
std::string StageText(const v1::Plan& plan) {
  const std::vector<StageRow> stages = StageRows(plan);
  if (stages.size() < 2) return "none";
  std::string text = absl::StrCat(stages.size(), ", devices ");
  for (size_t i = 0; i < stages.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " | ", NumberRanges(stages[i].devices));
  }
  return text;
}

// The settings of a step and its memory plan.
std::vector<TextPair> StepPairs(const v1::Plan& a, const v1::Plan& b) {
  const FitTotal fit_a = FitOf(a), fit_b = FitOf(b);
  const auto parts = [](int count) { return absl::StrCat(std::max(1, count)); };
  std::vector<TextPair> pairs = {
      {"pipeline stages", StageText(a), StageText(b)},
      {"micro-batches", parts(a.micro_batches()), parts(b.micro_batches())},
      {"ZeRO stage", absl::StrCat(a.zero_stage()), absl::StrCat(b.zero_stage())},
      {"swaps", SwapText(fit_a), SwapText(fit_b)},
      {"computed again", absl::StrCat(fit_a.recomputed), absl::StrCat(fit_b.recomputed)},
      {"batch tiles", parts(a.batch_tiles()), parts(b.batch_tiles())},
  };
  std::erase_if(pairs, [](const TextPair& pair) { return pair.a == pair.b; });
  return pairs;
}

}  // namespace

bool PlanDiff::equal() const {
  return identity.empty() && step.empty() && batch_a == batch_b && devices.empty() &&
         operators.empty() && retimed == 0 && parallel.empty() && alternatives.empty() &&
         search.empty() &&
         std::none_of(prediction.begin(), prediction.end(),
                      [](const NumberPair& pair) { return Differs(pair.a, pair.b); });
}

PlanDiff DiffPlans(const v1::Plan& a, const v1::Plan& b) {
  PlanDiff diff;
  if (a.graph_fingerprint() != b.graph_fingerprint()) {
    diff.identity.push_back({"graph", a.graph_fingerprint(), b.graph_fingerprint()});
  }
  if (a.format_version() != b.format_version()) {
    diff.identity.push_back(
        {"format", absl::StrCat(a.format_version()), absl::StrCat(b.format_version())});
  }
  diff.step = StepPairs(a, b);
  diff.batch_a = a.batch_size();
  diff.batch_b = b.batch_size();
  DiffDevices(a, b, &diff);
  DiffOperators(a, b, &diff);
  DiffParallel(a, b, &diff);
  diff.prediction = PredictionPairs(a.prediction(), b.prediction());
  DiffAlternatives(a, b, &diff);
  diff.search = SearchPairs(a.search(), b.search());
  return diff;
}

}  // namespace espalier
