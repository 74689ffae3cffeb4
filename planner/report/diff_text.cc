// RenderPlanDiff (diff.h).
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/report/diff.h"
#include "planner/report/format.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

// Wider cells are shortened: a list of thousands of devices, or an overlong name.
constexpr size_t kMaxColumns = 64;
constexpr size_t kFingerprintColumns = 12;  // as RenderPlan shows

using Lines = std::vector<std::vector<std::string>>;

// Columns are as wide as their widest cell, two spaces apart, indented as in RenderPlan.
std::string Table(const Lines& lines) {
  std::vector<size_t> widths;
  Lines cells = lines;
  for (std::vector<std::string>& line : cells) {
    widths.resize(std::max(widths.size(), line.size()), 0);
    for (size_t i = 0; i < line.size(); ++i) {
      line[i] = Shortened(line[i], kMaxColumns);
      widths[i] = std::max(widths[i], Columns(line[i]));
    }
  }
  std::string out;
  for (const std::vector<std::string>& line : cells) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) absl::StrAppend(&text, "  ", Pad(line[i], widths[i]));
    text.erase(text.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, text, "\n");
  }
  return out;
}

std::string Value(const NumberPair& pair, double value) {
  return pair.unit == NumberPair::kSeconds ? ReadableSeconds(value) : ReadableBytes(value);
}

std::string Change(const NumberPair& pair) {
  const double change = pair.b - pair.a;
  if (change == 0) return "the same";
  if (!std::isfinite(change)) return "";
  std::string text =
      pair.unit == NumberPair::kSeconds ? SignedSeconds(change) : SignedBytes(change);
  if (pair.a > 0) absl::StrAppendFormat(&text, " (%+.1f %%)", change / pair.a * 100);
  return text;
}

std::string Prediction(const PlanDiff& diff, absl::string_view a, absl::string_view b) {
  Lines lines = {{"", std::string(a), std::string(b), "change"}};
  for (const NumberPair& pair : diff.prediction) {
    lines.push_back({pair.name, Value(pair, pair.a), Value(pair, pair.b), Change(pair)});
  }
  return Table(lines);
}

std::string Alternatives(const PlanDiff& diff, absl::string_view a, absl::string_view b) {
  auto say = [](const std::optional<AlternativeChange::Side>& side) -> std::string {
    if (!side.has_value()) return "-";
    return absl::StrCat(ReadableSeconds(side->step_seconds), side->fits ? "" : ", cannot run");
  };
  Lines lines = {{"", std::string(a), std::string(b)}};
  for (const AlternativeChange& change : diff.alternatives) {
    lines.push_back({change.name, say(change.a), say(change.b)});
  }
  return Table(lines);
}

std::string Texts(const std::vector<TextPair>& pairs, absl::string_view a, absl::string_view b) {
  Lines lines = {{"", std::string(a), std::string(b)}};
  for (const TextPair& pair : pairs) lines.push_back({pair.name, pair.a, pair.b});
  return Table(lines);
}

// "sample×4 on 0-3".
std::string SideText(const OperatorChange::Side& side) {
  return absl::StrCat(side.split, side.devices.empty() ? "" : " on ", NumberRanges(side.devices));
}

// Changes that differ only in the number in the node's name.
struct ChangeRow {
  OperatorChange first;
  NumberedName name;
  std::vector<int> numbers;
  double seconds_a = 0, seconds_b = 0;
  std::string Name() const {
    if (numbers.empty()) return name.prefix;
    return absl::StrCat(name.prefix, NumberRanges(numbers), name.suffix);
  }
};

std::vector<ChangeRow> GroupChanges(const std::vector<OperatorChange>& changes) {
  using Key = std::tuple<int, std::string, std::string, bool, std::string, std::string, std::string,
                         std::string>;
  std::vector<ChangeRow> rows;
  std::map<Key, size_t> index;
  for (const OperatorChange& change : changes) {
    NumberedName name = SplitNumber(change.node);
    const int number = name.number;
    Key key{change.kind, name.prefix, name.suffix,        number >= 0,
            change.a.op, change.b.op, SideText(change.a), SideText(change.b)};
    const auto [it, inserted] = index.try_emplace(std::move(key), rows.size());
    if (inserted) rows.push_back({change, std::move(name), {}});
    ChangeRow& row = rows[it->second];
    if (number >= 0) row.numbers.push_back(number);
    row.seconds_a += change.a.seconds;
    row.seconds_b += change.b.seconds;
  }
  for (ChangeRow& row : rows) std::sort(row.numbers.begin(), row.numbers.end());
  return rows;
}

std::string Operators(const PlanDiff& diff, absl::string_view a, absl::string_view b) {
  Lines lines = {{"node", "operator", std::string(a), std::string(b), "time"}};
  for (const ChangeRow& row : GroupChanges(diff.operators)) {
    const OperatorChange& change = row.first;
    const bool in_a = change.kind != OperatorChange::kOnlyInB;
    const bool in_b = change.kind != OperatorChange::kOnlyInA;
    std::string op = in_a ? change.a.op : change.b.op;
    if (in_a && in_b && change.a.op != change.b.op) absl::StrAppend(&op, " -> ", change.b.op);
    const std::string time =
        absl::StrCat(in_a ? ReadableSeconds(row.seconds_a) : "", in_a && in_b ? " -> " : "",
                     in_b ? ReadableSeconds(row.seconds_b) : "");
    lines.push_back(
        {row.Name(), op, in_a ? SideText(change.a) : "-", in_b ? SideText(change.b) : "-", time});
  }
  return Table(lines);
}

// Consecutive devices with equal changes share a line.
std::string Devices(const PlanDiff& diff, absl::string_view a, absl::string_view b) {
  std::vector<std::pair<DeviceChange, std::vector<int>>> groups;
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (const DeviceChange& change : diff.devices) {
    const auto [it, inserted] = index.try_emplace({change.a, change.b}, groups.size());
    if (inserted) groups.push_back({change, {}});
    groups[it->second].second.push_back(change.index);
  }
  Lines lines = {{"device", std::string(a), std::string(b)}};
  for (const auto& [change, numbers] : groups) {
    lines.push_back({NumberRanges(numbers), change.a.empty() ? "-" : change.a,
                     change.b.empty() ? "-" : change.b});
  }
  return Table(lines);
}

std::string Edges(int count) { return absl::StrCat(count, count == 1 ? " edge, " : " edges, "); }

std::string Parallel(const PlanDiff& diff) {
  Lines lines;
  for (const ParallelChange& change : diff.parallel) {
    std::vector<std::string> line = {change.kind};
    if (change.removed > 0) {
      line.push_back(
          absl::StrCat("removed ", Edges(change.removed), ReadableBytes(change.removed_bytes)));
    }
    if (change.added > 0) {
      line.push_back(
          absl::StrCat("added ", Edges(change.added), ReadableBytes(change.added_bytes)));
    }
    if (change.altered > 0) {
      line.push_back(
          absl::StrCat("altered ", Edges(change.altered), SignedBytes(change.altered_bytes)));
    }
    lines.push_back(std::move(line));
  }
  return Table(lines);
}

}  // namespace

std::string RenderPlanDiff(const PlanDiff& diff, absl::string_view name_a,
                           absl::string_view name_b) {
  const std::string a = Shortened(name_a.empty() ? "A" : name_a, 40);
  const std::string b = Shortened(name_b.empty() ? "B" : name_b, 40);
  if (diff.equal()) return absl::StrCat("The plans ", a, " and ", b, " are equal.\n");
  std::string out = absl::StrCat("Plan ", a, " against plan ", b, "\n");
  std::vector<TextPair> identity = diff.identity;
  for (TextPair& pair : identity) {
    pair.a = pair.a.substr(0, kFingerprintColumns);
    pair.b = pair.b.substr(0, kFingerprintColumns);
  }
  if (diff.batch_a != diff.batch_b) {
    identity.push_back({"batch", ReadableCount(diff.batch_a), ReadableCount(diff.batch_b)});
  }
  if (!identity.empty()) absl::StrAppend(&out, "\nFor other work\n", Texts(identity, a, b));
  if (!diff.step.empty()) absl::StrAppend(&out, "\nHow a step runs\n", Texts(diff.step, a, b));
  if (!diff.devices.empty()) absl::StrAppend(&out, "\nDevices\n", Devices(diff, a, b));
  if (!diff.operators.empty()) {
    absl::StrAppend(&out, "\nOperators that differ: ", diff.operators.size(), " (", a, " has ",
                    diff.operators_a, ", ", b, " has ", diff.operators_b, ")\n",
                    Operators(diff, a, b));
  }
  if (diff.retimed > 0) {
    absl::StrAppend(&out, "\n", diff.retimed, " more are split alike but predicted to take ",
                    SignedSeconds(diff.retimed_seconds), " together\n");
  }
  if (!diff.parallel.empty()) {
    absl::StrAppend(&out, "\nParallel operators, bytes per step\n", Parallel(diff));
  }
  absl::StrAppend(&out, "\nPredicted, per step\n", Prediction(diff, a, b));
  if (!diff.alternatives.empty()) {
    absl::StrAppend(&out, "\nAlternatives, per step\n", Alternatives(diff, a, b));
  }
  if (!diff.search.empty()) absl::StrAppend(&out, "\nSearch\n", Texts(diff.search, a, b));
  return out;
}

}  // namespace espalier
