// RenderPlan (planner.h). Repeated layers share a line: "layers.0-7.mlp.up_proj".
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/planner.h"
#include "planner/report/format.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

constexpr size_t kMostPlaces = 4;  // that are listed

std::string PredictionLine(const std::string& name, const v1::Prediction& prediction,
                           const std::string& note) {
  return absl::StrFormat("  %s %s %s %s %s %s%s\n", Pad(name, 15),
                         Pad(ReadableSeconds(prediction.step_seconds()), 11),
                         Pad(ReadableSeconds(prediction.compute_seconds()), 11),
                         Pad(ReadableSeconds(prediction.communication_seconds()), 13),
                         Pad(ReadableBytes(prediction.bytes_moved()), 11),
                         Pad(ReadableBytes(static_cast<double>(PeakBytes(prediction))), 11), note);
}

std::string Operators(const v1::Plan& plan) {
  const std::vector<OperatorRow> rows = GroupOperators(plan);
  size_t name_width = 8, op_width = 8, split_width = 5, device_width = 7;
  for (const OperatorRow& row : rows) {
    name_width = std::max(name_width, static_cast<size_t>(Columns(row.Name())));
    op_width = std::max(op_width, row.op.size());
    split_width = std::max(split_width, static_cast<size_t>(Columns(row.split)));
    device_width = std::max(device_width, row.Devices().size());
  }
  const auto line = [&](const std::string& name, const std::string& op, const std::string& split,
                        const std::string& devices, const std::string& time) {
    return absl::StrCat("  ", Pad(name, name_width), "  ", Pad(op, op_width), "  ",
                        Pad(split, split_width), "  ", Pad(devices, device_width), "  ", time,
                        "\n");
  };
  std::string out = line("node", "operator", "split", "devices", "time");
  for (const OperatorRow& row : rows) {
    out += line(row.Name(), row.op, row.split, row.Devices(), ReadableSeconds(row.seconds));
  }
  return out;
}

std::string Changes(const v1::Plan& plan) {
  std::string out;
  for (const auto& [kind, total] : TotalByKind(plan)) {
    absl::StrAppend(&out, "  ", Pad(kind, 18), total.edges, " edges, ", ReadableBytes(total.bytes),
                    " per step\n");
  }
  return out.empty() ? "  none\n" : out;
}

std::string MemoryLines(const v1::Plan& plan) {
  std::string out;
  for (int d = 0; d < plan.memory_plans_size(); ++d) {
    const v1::MemoryPlan& memory = plan.memory_plans(d);
    if (memory.evictions().empty()) continue;
    int swapped = 0, again = 0;
    for (const v1::MemoryPlan::Eviction& a : memory.evictions()) {
      (a.recompute() ? again : swapped) += 1;
    }
    absl::StrAppendFormat(
        &out,
        "  device %d: %d swaps (%s copied, %s on the host), %d computed again; %s without, +%s\n",
        d, swapped, ReadableBytes(static_cast<double>(memory.copied_bytes())),
        ReadableBytes(static_cast<double>(memory.host_bytes())), again,
        ReadableBytes(static_cast<double>(memory.bytes_without())),
        ReadableSeconds(memory.added_seconds()));
  }
  if (plan.batch_tiles() > 1) {
    absl::StrAppend(&out, "  operators run in up to ", plan.batch_tiles(),
                    " batch tiles, one after another\n");
  }
  return out.empty() ? "" : absl::StrCat("\nMade to fit, per step\n", out);
}

// Each rule once, with the operators it was applied to.
std::string RewriteLines(const v1::Plan& plan) {
  std::map<std::string, std::vector<std::string>> places;
  for (const v1::Rewrite& rewrite : plan.rewrites()) {
    places[rewrite.rule()].push_back(rewrite.at());
  }
  std::string out;
  for (auto& [rule, operators] : places) {
    const size_t more = operators.size() > kMostPlaces ? operators.size() - kMostPlaces : 0;
    operators.resize(operators.size() - more);
    absl::StrAppend(&out, "  ", rule, " at ", absl::StrJoin(operators, ", "));
    if (more > 0) absl::StrAppend(&out, " and ", more, " more");
    absl::StrAppend(&out, "\n");
  }
  return out.empty() ? "" : absl::StrCat("Rewrites of the graph\n", out, "\n");
}

std::string ParetoLines(const v1::Plan& plan) {
  std::string out;
  for (const v1::ParetoPoint& point : plan.pareto_front()) {
    absl::StrAppend(&out, "  ", Pad(ReadableSeconds(point.step_seconds()), 11), " ",
                    Pad(ReadableBytes(static_cast<double>(point.peak_bytes())), 11), "  ",
                    point.name(), point.chosen() ? " (this plan)" : "", "\n");
  }
  return out.empty() ? "" : absl::StrCat("\nFastest for any memory: step, memory\n", out);
}

std::string Temperature(const v1::SearchSummary& search) {
  return search.alpha() > 0 ? absl::StrFormat("alpha %g", search.alpha()) : "annealed";
}

}  // namespace

std::string RenderPlan(const v1::Plan& plan) {
  std::string out =
      absl::StrFormat("Plan for batch size %d on %d device%s (graph %s)\n\n", plan.batch_size(),
                      plan.devices_size(), plan.devices_size() == 1 ? "" : "s",
                      plan.graph_fingerprint().substr(0, 12));
  if (plan.micro_batches() > 1) {
    absl::StrAppendFormat(&out, "The batch runs as %d micro-batches, one after another\n\n",
                          plan.micro_batches());
  }
  const std::vector<StageRow> stages = StageRows(plan);
  if (stages.size() > 1) {
    absl::StrAppend(&out, "Pipeline stages\n");
    for (size_t i = 0; i < stages.size(); ++i) {
      absl::StrAppend(&out, "  ", i, ": ", stages[i].operators.size(), " operators, from ",
                      Shortened(plan.operators(stages[i].operators.front()).node(), 40),
                      ", on devices ", NumberRanges(stages[i].devices), "\n");
    }
    out += "\n";
  }
  if (plan.zero_stage() > 0) {
    const char* const shared[] = {"optimizer state", "optimizer state and gradients",
                                  "optimizer state, gradients and parameters"};
    absl::StrAppend(&out, "ZeRO stage ", plan.zero_stage(), ": replicas share out ",
                    shared[std::min(plan.zero_stage(), 3) - 1], "\n\n");
  }
  absl::StrAppend(&out, RewriteLines(plan), "Operators\n", Operators(plan),
                  "\nParallel operators\n", Changes(plan), "\nPredicted, per step\n");
  absl::StrAppend(&out, "  ", Pad("", 15), " ", Pad("step", 11), " ", Pad("compute", 11), " ",
                  Pad("communication", 13), " ", Pad("moved", 11), " ", Pad("memory", 11), "\n",
                  PredictionLine("this plan", plan.prediction(), ""));
  for (const v1::Alternative& alternative : plan.alternatives()) {
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
  absl::StrAppend(&out, MemoryLines(plan), ParetoLines(plan));
  if (plan.search().budget() > 0) {
    absl::StrAppendFormat(&out, "\nSearch: %d proposals, %d accepted, in %s (%s, seed %d)\n",
                          plan.search().proposals(), plan.search().accepted(),
                          ReadableSeconds(plan.search().seconds()), Temperature(plan.search()),
                          plan.search().seed());
  }
  if (plan.search().graphs() > 0) {
    absl::StrAppend(&out, "Rewrites: ", plan.search().graphs(), " graphs tried, ",
                    plan.rewrites_size(), " applied\n");
  }
  return out;
}

}  // namespace espalier
