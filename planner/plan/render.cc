// RenderPlan: see planner.h. Repeated layers share a line: "layers.0-7.mlp.up_proj".
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "planner/planner.h"

namespace espalier {
namespace {

std::string Bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

std::string Seconds(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.2f s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.1f us", seconds * 1e6);
}

std::string PeakOf(const proto::Prediction& prediction) {
  int64_t peak = 0;
  for (int64_t bytes : prediction.peak_bytes()) peak = std::max(peak, bytes);
  return Bytes(static_cast<double>(peak));
}

// "layers.3.mlp" -> ("layers.*.mlp", 3); without a number: (name, -1).
std::pair<std::string, int> SplitNumber(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (std::string& part : parts) {
    if (part.empty() || part.size() > 6) continue;
    if (part.find_first_not_of("0123456789") != std::string::npos) continue;
    const int number = std::stoi(part);
    part = "*";
    return {absl::StrJoin(parts, "."), number};
  }
  return {name, -1};
}

// {0, 1, 2, 5} -> "0-2,5".
std::string Ranges(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    absl::StrAppend(&out, out.empty() ? "" : ",", numbers[i]);
    if (j > i) absl::StrAppend(&out, "-", numbers[j]);
    i = j + 1;
  }
  return out;
}

struct Row {
  std::string pattern;
  std::string op;
  std::string choice;
  std::string devices;
  std::vector<int> numbers;
  double seconds = 0;
  int count = 0;

  std::string Name() const {
    if (numbers.empty()) return pattern;
    std::string name = pattern;
    return name.replace(name.find('*'), 1, Ranges(numbers));
  }
};

std::vector<Row> GroupOperators(const proto::Plan& plan) {
  std::vector<Row> rows;
  std::map<std::vector<std::string>, size_t> index;
  for (const proto::OperatorPlan& op : plan.operators()) {
    const auto [pattern, number] = SplitNumber(op.node());
    const std::map<std::string, int> degrees(op.degrees().begin(), op.degrees().end());
    std::string choice = absl::StrJoin(degrees, " ", [](std::string* out, const auto& degree) {
      absl::StrAppend(out, degree.first, "×", degree.second);
    });
    if (choice.empty()) choice = "whole";
    const std::string devices = absl::StrJoin(op.devices(), ",");
    const auto [it, inserted] = index.try_emplace({pattern, op.op(), choice, devices}, rows.size());
    if (inserted) rows.push_back({pattern, op.op(), choice, devices, {}, 0, 0});
    Row& row = rows[it->second];
    if (number >= 0) row.numbers.push_back(number);
    row.seconds += op.predicted_seconds();
    ++row.count;
  }
  return rows;
}

// Display width: '×' is two bytes and one column.
std::string Pad(const std::string& text, size_t width) {
  size_t columns = 0;
  for (unsigned char c : text) columns += (c & 0xC0) != 0x80;
  return columns >= width ? text : text + std::string(width - columns, ' ');
}

std::string PredictionLine(const std::string& name, const proto::Prediction& prediction,
                           const std::string& note) {
  return absl::StrFormat(
      "  %s %s %s %s %s %s%s\n", Pad(name, 15), Pad(Seconds(prediction.step_seconds()), 11),
      Pad(Seconds(prediction.compute_seconds()), 11),
      Pad(Seconds(prediction.communication_seconds()), 13),
      Pad(Bytes(prediction.bytes_moved()), 11), Pad(PeakOf(prediction), 11), note);
}

std::string Operators(const proto::Plan& plan) {
  const std::vector<Row> rows = GroupOperators(plan);
  size_t name_width = 8, op_width = 8, choice_width = 5;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.Name().size());
    op_width = std::max(op_width, row.op.size());
    choice_width = std::max(choice_width, row.choice.size());
  }
  std::string out =
      absl::StrCat("  ", Pad("node", name_width), "  ", Pad("operator", op_width), "  ",
                   Pad("split", choice_width), "  ", Pad("devices", 9), "time\n");
  for (const Row& row : rows) {
    absl::StrAppend(&out, "  ", Pad(row.Name(), name_width), "  ", Pad(row.op, op_width), "  ",
                    Pad(row.choice, choice_width), "  ", Pad(row.devices, 9), Seconds(row.seconds),
                    "\n");
  }
  return out;
}

std::string Changes(const proto::Plan& plan) {
  std::map<std::string, std::pair<int, double>> by_kind;
  for (const proto::ParallelOperator& op : plan.parallel_operators()) {
    auto& [count, bytes] =
        by_kind[absl::StrCat(proto::ParallelOperator::Kind_Name(op.kind()), " ×", op.degree())];
    ++count;
    bytes += op.bytes();
  }
  if (by_kind.empty()) return "  none\n";
  std::string out;
  for (const auto& [kind, total] : by_kind) {
    absl::StrAppend(&out, "  ", Pad(kind, 18), total.first, " edges, ", Bytes(total.second),
                    " per step\n");
  }
  return out;
}

std::string MemoryLines(const proto::Plan& plan) {
  std::string out;
  for (int d = 0; d < plan.memory_plans_size(); ++d) {
    const proto::MemoryPlan& memory = plan.memory_plans(d);
    if (memory.absences().empty()) continue;
    int swapped = 0, again = 0;
    for (const proto::MemoryPlan::Absence& a : memory.absences()) {
      (a.recompute() ? again : swapped) += 1;
    }
    absl::StrAppendFormat(
        &out,
        "  device %d: %d swaps (%s copied, %s on the host), %d computed again; %s without, +%s\n",
        d, swapped, Bytes(static_cast<double>(memory.copied_bytes())),
        Bytes(static_cast<double>(memory.host_bytes())), again,
        Bytes(static_cast<double>(memory.bytes_without())), Seconds(memory.added_seconds()));
  }
  return out.empty() ? "" : absl::StrCat("\nMade to fit, per step\n", out);
}

}  // namespace

std::string RenderPlan(const proto::Plan& plan) {
  std::string out =
      absl::StrFormat("Plan for batch size %d on %d device%s (graph %s)\n\n", plan.batch_size(),
                      plan.devices_size(), plan.devices_size() == 1 ? "" : "s",
                      plan.graph_fingerprint().substr(0, 12));
  absl::StrAppend(&out, "Operators\n", Operators(plan), "\nParallel operators\n", Changes(plan),
                  "\nPredicted, per step\n");
  absl::StrAppend(&out, "  ", Pad("", 15), " ", Pad("step", 11), " ", Pad("compute", 11), " ",
                  Pad("communication", 13), " ", Pad("moved", 11), " ", Pad("memory", 11), "\n",
                  PredictionLine("this plan", plan.prediction(), ""));
  for (const proto::Alternative& alternative : plan.alternatives()) {
    std::string note;
    const double own = plan.prediction().step_seconds();
    if (!alternative.refused().empty()) {
      note = absl::StrCat(" cannot run: ", alternative.refused());
    } else if (own > 0) {
      note = absl::StrFormat(" %.2fx the time of this plan",
                             alternative.prediction().step_seconds() / own);
    }
    absl::StrAppend(&out, PredictionLine(alternative.name(), alternative.prediction(), note));
  }
  absl::StrAppend(&out, MemoryLines(plan));
  if (plan.search().budget() > 0) {
    absl::StrAppendFormat(&out, "\nSearch: %d proposals, %d accepted, in %s (alpha %g, seed %d)\n",
                          plan.search().proposals(), plan.search().accepted(),
                          Seconds(plan.search().seconds()), plan.search().alpha(),
                          plan.search().seed());
  }
  return out;
}

}  // namespace espalier
