// How a step runs: pipeline stages, micro-batches, ZeRO and offload.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/report/format.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"

namespace espalier {
namespace {

constexpr size_t kMaxStages = 64, kMaxDevices = 64, kMaxEvictions = 40;

std::string Row(const std::vector<std::string>& cells, size_t first_number) {
  std::string out = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&out, i < first_number ? "<td>" : "<td class=\"num\">",
                    EscapedShort(cells[i], 80), "</td>");
  }
  return out + "</tr>\n";
}

std::string Head(const std::vector<std::string>& cells, size_t first_number) {
  std::string out = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&out, i < first_number ? "<th>" : "<th class=\"num\">", Escaped(cells[i]),
                    "</th>");
  }
  return out + "</tr></thead>\n<tbody>\n";
}

constexpr char kEnd[] = "</tbody></table></div>\n";

std::string Parts(const v1::Plan& plan) {
  std::vector<std::string> lines;
  if (plan.micro_batches() > 1) {
    lines.push_back(absl::StrCat("The batch runs as ", plan.micro_batches(),
                                 " micro-batches, one after another; their gradients are added "
                                 "up before one update."));
  }
  if (plan.zero_stage() > 0) {
    const char* const shared[] = {"optimizer state", "optimizer state and gradients",
                                  "optimizer state, gradients and parameters"};
    lines.push_back(absl::StrCat("ZeRO stage ", plan.zero_stage(), ": replicas share out ",
                                 shared[std::min(plan.zero_stage(), 3) - 1], "."));
  }
  if (plan.batch_tiles() > 1) {
    lines.push_back(absl::StrCat("Made to fit: operators run in up to ", plan.batch_tiles(),
                                 " batch tiles, all tiles of one before the next."));
  }
  std::string out;
  for (const std::string& line : lines) absl::StrAppend(&out, "<p>", Escaped(line), "</p>\n");
  return out;
}

std::string Stages(const v1::Plan& plan) {
  const std::vector<StageRow> stages = StageRows(plan);
  if (stages.size() < 2) return "";
  std::string out = Head({"pipeline stage", "devices", "from", "to", "operators", "time"}, 4);
  for (size_t i = 0; i < std::min(stages.size(), kMaxStages); ++i) {
    const StageRow& stage = stages[i];
    out += Row({absl::StrCat(i), NumberRanges(stage.devices),
                plan.operators(stage.operators.front()).node(),
                plan.operators(stage.operators.back()).node(),
                ReadableCount(static_cast<int64_t>(stage.operators.size())),
                ReadableSeconds(stage.seconds)},
               4);
  }
  out += kEnd;
  if (stages.size() > kMaxStages) {
    out += Note(absl::StrCat(stages.size() - kMaxStages, " more stages are not shown."));
  }
  return out;
}

std::string Fit(const v1::Plan& plan) {
  std::string rows;
  std::vector<std::pair<int, const v1::MemoryPlan::Eviction*>> evictions;  // by device
  int devices = 0;
  for (int d = 0; d < plan.memory_plans_size(); ++d) {
    const v1::MemoryPlan& memory = plan.memory_plans(d);
    for (const auto& a : memory.evictions()) evictions.emplace_back(d, &a);
    if (memory.evictions().empty() || ++devices > static_cast<int>(kMaxDevices)) continue;
    const FitTotal fit = FitOf(memory);
    rows += Row(
        {absl::StrCat(d), ReadableBytes(static_cast<double>(memory.bytes_without())),
         d < plan.prediction().peak_bytes_size()
             ? ReadableBytes(static_cast<double>(plan.prediction().peak_bytes(d)))
             : "",
         ReadableCount(fit.swaps), ReadableBytes(fit.copied_bytes), ReadableBytes(fit.host_bytes),
         ReadableCount(fit.recomputed), ReadableSeconds(fit.added_seconds)},
        1);
  }
  if (rows.empty()) return "";
  std::string out = absl::StrCat(
      Head({"device", "without", "now", "swaps", "copied", "on the host", "computed again", "adds"},
           1),
      rows, kEnd);
  std::stable_sort(evictions.begin(), evictions.end(), [](const auto& a, const auto& b) {
    return a.second->bytes() > b.second->bytes();
  });
  out += Head({"tensor", "device", "away after", "until", "how", "bytes"}, 5);
  for (size_t i = 0; i < std::min(evictions.size(), kMaxEvictions); ++i) {
    const auto& [device, a] = evictions[i];
    out += Row({a->tensor(), absl::StrCat(device), a->after(), a->before(),
                a->recompute() ? "computed again" : "swapped",
                ReadableBytes(static_cast<double>(a->bytes()))},
               5);
  }
  out += kEnd;
  if (evictions.size() > kMaxEvictions) {
    out += Note(absl::StrCat("The ", kMaxEvictions, " largest of ", evictions.size(),
                             " tensors that leave; the exported plan has them all."));
  }
  return out;
}

}  // namespace

std::string StepSection(const v1::Plan& plan) {
  std::string content = absl::StrCat(Parts(plan), Stages(plan), Fit(plan));
  if (content.empty()) {
    content = Note(
        "The whole batch at once, without pipeline stages; replicas keep everything, and all of "
        "it fits as it is.");
  }
  return Section("step", "How a step runs", content);
}

}  // namespace espalier
