#include "client/cli/plan_view.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::string Memory(const v1::Prediction& p) {
  if (p.peak_bytes().empty()) return "";
  return FormatBytes(
      static_cast<double>(*std::max_element(p.peak_bytes().begin(), p.peak_bytes().end())));
}

void AddRow(const std::string& name, const v1::Prediction& p, const v1::Prediction& best,
            const Terminal& terminal, Table* table) {
  const double ratio = best.step_seconds() > 0 ? p.step_seconds() / best.step_seconds() : 0;
  table->Row({name, FormatSeconds(p.step_seconds(), terminal.unicode),
              absl::StrFormat("%.2f%s", ratio, terminal.unicode ? "\u00d7" : "x"),
              FormatSeconds(p.compute_seconds(), terminal.unicode),
              FormatSeconds(p.communication_seconds(), terminal.unicode),
              FormatBytes(p.bytes_moved()), Memory(p)});
}

// An operator split by {sample: 2} gives "sample=2".
std::string Degrees(const v1::OperatorPlan& op) {
  std::map<std::string, int> sorted;
  for (const auto& [axis, degree] : op.degrees()) {
    if (degree > 1) sorted[axis] = degree;
  }
  if (sorted.empty())
    return op.devices_size() > 0 ? absl::StrCat("whole, device ", op.devices(0)) : "whole";
  return absl::StrJoin(sorted, " ", absl::PairFormatter("="));
}

}  // namespace

std::string RenderPlanSummary(const v1::Plan& plan, const Terminal& terminal) {
  Table table({{"plan"},
               {"step", Align::kRight},
               {"", Align::kRight},
               {"compute", Align::kRight},
               {"exchange", Align::kRight},
               {"moved", Align::kRight},
               {"memory", Align::kRight}});
  AddRow("this plan", plan.prediction(), plan.prediction(), terminal, &table);
  std::string refused;
  for (const v1::Alternative& other : plan.alternatives()) {
    if (other.refused().empty()) {
      AddRow(Printable(other.name()), other.prediction(), plan.prediction(), terminal, &table);
    } else {
      absl::StrAppend(&refused, "  ", Printable(other.name()),
                      ": cannot run: ", Printable(other.refused()), "\n");
    }
  }
  std::map<std::string, int> kinds;
  std::set<int> devices;
  for (const v1::OperatorPlan& op : plan.operators()) {
    ++kinds[Degrees(op)];
    devices.insert(op.devices().begin(), op.devices().end());
  }
  std::string out = table.Render(terminal) + refused;
  absl::StrAppend(&out, plan.operators_size(), " operators on ", devices.size(), " of ",
                  plan.devices_size(), " devices: ",
                  absl::StrJoin(kinds, ", ",
                                [](std::string* s, const auto& k) {
                                  absl::StrAppend(s, k.second, " ", Printable(k.first));
                                }),
                  "\n");
  if (plan.micro_batches() > 1) {
    absl::StrAppend(&out, "the batch in ", plan.micro_batches(), " micro-batches\n");
  }
  if (plan.zero_stage() > 0) absl::StrAppend(&out, "ZeRO stage ", plan.zero_stage(), "\n");
  if (plan.batch_tiles() > 1) {
    absl::StrAppend(&out, "made to fit: operators in up to ", plan.batch_tiles(), " batch tiles\n");
  }
  const v1::SearchSummary& search = plan.search();
  if (search.proposals() > 0) {
    absl::StrAppend(&out, "search: ", search.proposals(), " proposals, ", search.accepted(),
                    " accepted, ", FormatSeconds(search.seconds(), terminal.unicode), ", seed ",
                    search.seed(), "\n");
  }
  return out;
}

std::string PlanInWords(const v1::Plan& plan) {
  const int workers = std::max(1, plan.devices_size());
  std::map<std::string, int> axes;  // operators that are split along each
  int split = 0;
  bool data_parallel = plan.operators_size() > 0;
  std::set<std::vector<int>> groups;  // of devices
  for (const v1::OperatorPlan& op : plan.operators()) {
    groups.emplace(op.devices().begin(), op.devices().end());
    bool any = false;
    for (const auto& [axis, degree] : op.degrees()) {
      if (degree <= 1) continue;
      any = true;
      ++axes[axis];
      data_parallel = data_parallel && axis == "sample" && degree == workers;
    }
    data_parallel = data_parallel && any;
    split += any ? 1 : 0;
  }
  std::vector<std::string> parts;
  if (workers == 1) {
    parts.emplace_back("one worker");
  } else if (data_parallel) {
    parts.push_back(absl::StrCat("data parallel over ", workers, " workers"));
  } else {
    parts.push_back(absl::StrCat(workers, " workers"));
    if (split > 0) {
      parts.push_back(absl::StrCat(
          split, " of ", plan.operators_size(),
          " operators split: ", absl::StrJoin(axes, ", ", [](std::string* out, const auto& axis) {
            absl::StrAppend(out, axis.second, " by ", Printable(axis.first));
          })));
    }
    if (split == 0 && groups.size() > 1) {
      parts.emplace_back("each with some of the operators");
    } else if (groups.size() > 1) {
      parts.push_back(absl::StrCat("operators on ", groups.size(), " groups of workers"));
    }
  }
  if (plan.micro_batches() > 1) {
    parts.push_back(absl::StrCat(plan.micro_batches(), " micro-batches"));
  }
  if (plan.zero_stage() > 0) parts.push_back(absl::StrCat("ZeRO stage ", plan.zero_stage()));
  if (plan.batch_tiles() > 1) {
    parts.push_back(absl::StrCat("up to ", plan.batch_tiles(), " batch tiles"));
  }
  int swapped = 0, recomputed = 0;
  for (const v1::MemoryPlan& device : plan.memory_plans()) {
    for (const v1::MemoryPlan::Eviction& eviction : device.evictions()) {
      ++(eviction.recompute() ? recomputed : swapped);
    }
  }
  if (swapped > 0) parts.push_back(absl::StrCat("tensors swapped to host memory: ", swapped));
  if (recomputed > 0) parts.push_back(absl::StrCat("tensors computed twice: ", recomputed));
  return absl::StrJoin(parts, ", ");
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

std::string PlanToJson(const v1::Plan& plan) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // Cannot fail: a Plan holds no Any and no invalid time.
  if (!google::protobuf::util::MessageToJsonString(plan, &json, options).ok()) return "";
  return json;
}

}  // namespace espalier
