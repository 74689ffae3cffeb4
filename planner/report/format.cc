#include "planner/report/format.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

constexpr char kUnknown[] = "unknown";

bool IsNumber(absl::string_view part) {
  if (part.empty() || part.size() > 6 || (part.size() > 1 && part[0] == '0')) return false;
  return std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
}

}  // namespace

std::string ReadableBytes(double bytes) {
  if (!std::isfinite(bytes)) return kUnknown;
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1024 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

std::string ReadableSeconds(double seconds) {
  if (!std::isfinite(seconds)) return kUnknown;
  if (seconds == 0) return "0 s";
  if (std::abs(seconds) >= 1) return absl::StrFormat("%.2f s", seconds);
  if (std::abs(seconds) >= 1e-3) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.1f us", seconds * 1e6);
}

std::string SignedBytes(double bytes) {
  return absl::StrCat(bytes > 0 ? "+" : "", ReadableBytes(bytes));
}

std::string SignedSeconds(double seconds) {
  return absl::StrCat(seconds > 0 ? "+" : "", ReadableSeconds(seconds));
}

std::string ReadableCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  for (int i = static_cast<int>(digits.size()) - 3; i > (count < 0 ? 1 : 0); i -= 3) {
    digits.insert(i, ",");
  }
  return digits;
}

std::string ReadablePercent(double fraction) {
  if (!std::isfinite(fraction)) return kUnknown;
  const double percent = fraction * 100;
  return absl::StrFormat(percent == 0 || std::abs(percent) >= 9.95 ? "%.0f %%" : "%.1f %%",
                         percent);
}

int64_t PeakBytes(const v1::Prediction& prediction) {
  int64_t peak = 0;
  for (int64_t bytes : prediction.peak_bytes()) peak = std::max(peak, bytes);
  return peak;
}

std::string NumberRanges(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && int64_t{numbers[j]} + 1 == numbers[j + 1]) ++j;
    absl::StrAppend(&out, out.empty() ? "" : ",", numbers[i]);
    if (j > i) absl::StrAppend(&out, "-", numbers[j]);
    i = j + 1;
  }
  return out;
}

NumberedName SplitNumber(const std::string& name) {
  const absl::string_view view = name;
  for (size_t begin = 0; begin <= view.size();) {
    const size_t end = std::min(view.size(), view.find('.', begin));
    const absl::string_view part = view.substr(begin, end - begin);
    if (IsNumber(part)) {
      int number = 0;
      for (char digit : part) number = number * 10 + (digit - '0');
      return {name.substr(0, begin), number, name.substr(end)};
    }
    begin = end + 1;
  }
  return {name, -1, ""};
}

std::string SplitText(const v1::OperatorPlan& op) {
  // The order of a protobuf map is undefined.
  const std::map<std::string, int> degrees(op.degrees().begin(), op.degrees().end());
  if (degrees.empty()) return "whole";
  return absl::StrJoin(degrees, " ", [](std::string* out, const auto& degree) {
    absl::StrAppend(out, degree.first, "×", degree.second);
  });
}

std::string KindText(v1::ParallelOperator::Kind kind) {
  if (!v1::ParallelOperator::Kind_IsValid(kind)) return absl::StrCat("kind ", kind);
  std::string text = absl::AsciiStrToLower(v1::ParallelOperator::Kind_Name(kind));
  std::replace(text.begin(), text.end(), '_', '-');
  return kind == v1::ParallelOperator::EXCHANGE_HALO ? "halo exchange" : text;
}

std::string KindText(v1::Device::Kind kind) {
  if (kind == v1::Device::KIND_UNSPECIFIED) return "device";
  return v1::Device::Kind_IsValid(kind) ? v1::Device::Kind_Name(kind) : absl::StrCat("kind ", kind);
}

std::string OperatorRow::Name() const {
  if (numbers.empty()) return name.prefix;
  return absl::StrCat(name.prefix, NumberRanges(numbers), name.suffix);
}

std::vector<OperatorRow> GroupOperators(const v1::Plan& plan) {
  using Key =
      std::tuple<std::string, std::string, bool, std::string, std::string, std::vector<int>>;
  std::vector<OperatorRow> rows;
  std::map<Key, size_t> index;
  for (int i = 0; i < plan.operators_size(); ++i) {
    const v1::OperatorPlan& op = plan.operators(i);
    NumberedName name = SplitNumber(op.node());
    const int number = name.number;
    std::string split = SplitText(op);
    const std::vector<int> devices(op.devices().begin(), op.devices().end());
    const auto [it, inserted] = index.try_emplace(
        Key{name.prefix, name.suffix, number >= 0, op.op(), split, devices}, rows.size());
    if (inserted) rows.push_back({std::move(name), {}, op.op(), std::move(split), devices});
    OperatorRow& row = rows[it->second];
    if (number >= 0) row.numbers.push_back(number);
    row.seconds += op.predicted_seconds();
    row.operators.push_back(i);
  }
  for (OperatorRow& row : rows) std::sort(row.numbers.begin(), row.numbers.end());
  return rows;
}

std::map<std::string, KindTotal> TotalByKind(const v1::Plan& plan) {
  std::map<std::string, KindTotal> totals;
  for (const v1::ParallelOperator& op : plan.parallel_operators()) {
    KindTotal& total = totals[KindAndDegree(op)];
    ++total.edges;
    total.bytes += op.bytes();
  }
  return totals;
}

std::string KindAndDegree(const v1::ParallelOperator& op) {
  const std::string kind = KindText(op.kind());
  return op.degree() > 1 ? absl::StrCat(kind, " ×", op.degree()) : kind;
}

std::vector<StageRow> StageRows(const v1::Plan& plan) {
  // Devices that share an operator belong to one stage.
  std::map<int, int> parent;
  const auto root = [&](int d) {
    while (parent.try_emplace(d, d).first->second != d) d = parent[d];
    return d;
  };
  for (const v1::OperatorPlan& op : plan.operators()) {
    for (int d : op.devices()) parent[root(d)] = root(op.devices(0));
  }
  std::vector<StageRow> stages;
  std::map<int, size_t> index;
  for (int i = 0; i < plan.operators_size(); ++i) {
    const v1::OperatorPlan& op = plan.operators(i);
    if (op.devices().empty()) continue;
    const auto [at, inserted] = index.try_emplace(root(op.devices(0)), stages.size());
    if (inserted) stages.emplace_back();
    StageRow& stage = stages[at->second];
    stage.operators.push_back(i);
    stage.seconds += op.predicted_seconds();
    stage.devices.insert(stage.devices.end(), op.devices().begin(), op.devices().end());
  }
  for (StageRow& stage : stages) {
    std::sort(stage.devices.begin(), stage.devices.end());
    stage.devices.erase(std::unique(stage.devices.begin(), stage.devices.end()),
                        stage.devices.end());
  }
  return stages;
}

FitTotal FitOf(const v1::MemoryPlan& memory) {
  FitTotal total;
  for (const v1::MemoryPlan::Eviction& a : memory.evictions()) {
    (a.recompute() ? total.recomputed : total.swaps) += 1;
  }
  total.copied_bytes = static_cast<double>(memory.copied_bytes());
  total.host_bytes = static_cast<double>(memory.host_bytes());
  total.added_seconds = memory.added_seconds();
  return total;
}

FitTotal FitOf(const v1::Plan& plan) {
  FitTotal total;
  for (const v1::MemoryPlan& memory : plan.memory_plans()) {
    const FitTotal one = FitOf(memory);
    total.swaps += one.swaps;
    total.recomputed += one.recomputed;
    total.copied_bytes += one.copied_bytes;
    total.host_bytes += one.host_bytes;
    total.added_seconds = std::max(total.added_seconds, one.added_seconds);
  }
  return total;
}

}  // namespace espalier
