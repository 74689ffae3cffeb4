#include "planner/report/dot.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/report/format.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

// The lines of a label. Inside double quotes only these two characters are special.
std::string Quoted(const std::vector<std::string>& lines) {
  std::string out = "\"";
  for (const std::string& line : lines) {
    if (line.empty()) continue;
    if (out.size() > 1) out += "\\n";
    for (char c : Printable(line)) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "\"";
}

std::string KindOf(const TimelineTask& task) {
  switch (task.kind) {
    case TimelineTask::kForward:
      return "forward";
    case TimelineTask::kBackward:
      return "backward";
    case TimelineTask::kReshard:
      return "layout";
    case TimelineTask::kGradientSync:
      return "gradients";
    case TimelineTask::kUpdate:
      return "update";
  }
  return "";
}

bool AreOneTransfer(const TimelineTask& a, const TimelineTask& b) {
  return a.communicates && b.communicates && a.begin == b.begin && a.end == b.end &&
         a.kind == b.kind && a.node == b.node && a.bytes == b.bytes;
}

std::string Edge(const std::string& from, const std::string& to) {
  return absl::StrCat("  ", from, " -> ", to, ";\n");
}

}  // namespace

std::string TaskGraphDot(const Timeline& timeline) {
  std::string nodes, edges;
  std::map<int, std::string> last;  // by device
  const std::vector<TimelineTask>& tasks = timeline.tasks;
  std::vector<bool> done(tasks.size(), false);
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (done[i]) continue;
    const TimelineTask& task = tasks[i];
    std::vector<int> devices = {task.device};
    // A device takes part in a transfer once, so a repeated name starts the next transfer.
    for (size_t k = i + 1; k < tasks.size() && tasks[k].begin == task.begin; ++k) {
      if (done[k] || !AreOneTransfer(task, tasks[k])) continue;
      if (tasks[k].device == task.device) break;
      devices.push_back(tasks[k].device);
      done[k] = true;
    }
    const std::string id = absl::StrCat("t", i);
    absl::StrAppend(
        &nodes, "  ", id, " [label=",
        Quoted({task.node, absl::StrCat(KindOf(task), " on ", NumberRanges(devices)),
                absl::StrCat(ReadableSeconds(task.end - task.begin), task.bytes > 0 ? ", " : "",
                             task.bytes > 0 ? ReadableBytes(task.bytes) : "")}),
        task.communicates ? ", shape=ellipse];\n" : "];\n");
    std::set<std::string> before;
    for (int device : devices) {
      const auto found = last.find(device);
      if (found != last.end() && before.insert(found->second).second) {
        edges += Edge(found->second, id);
      }
      last[device] = id;
    }
  }
  return absl::StrCat("digraph tasks {\n  node [shape=box];\n", nodes, edges, "}\n");
}

std::string ComputationGraphDot(const v1::Plan& plan, const Graph& graph, bool costs) {
  std::map<std::string, std::string> ids;  // of the plan's operators
  std::string nodes, edges;
  for (int i = 0; i < plan.operators_size(); ++i) {
    const v1::OperatorPlan& op = plan.operators(i);
    const std::string id = absl::StrCat("n", i);
    if (!ids.try_emplace(op.node(), id).second) continue;
    const std::vector<int> devices(op.devices().begin(), op.devices().end());
    absl::StrAppend(&nodes, "  ", id, " [label=",
                    Quoted({op.node(), absl::StrCat(op.op(), ", ", SplitText(op)),
                            absl::StrCat("on ", NumberRanges(devices)),
                            costs ? ReadableSeconds(op.predicted_seconds()) : ""}),
                    "];\n");
  }
  // Parallel operators in order, before each consumer of a tensor.
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> between;
  for (int i = 0; i < plan.parallel_operators_size(); ++i) {
    const v1::ParallelOperator& op = plan.parallel_operators(i);
    const std::string id = absl::StrCat("p", i);
    between[{op.tensor(), op.consumer()}].push_back(id);
    absl::StrAppend(
        &nodes, "  ", id, " [shape=ellipse, label=",
        Quoted({KindAndDegree(op), op.tensor(), costs ? ReadableBytes(op.bytes()) : ""}), "];\n");
  }
  const auto connect = [&](std::string from, const std::vector<std::string>& way,
                           const std::string& to) {
    for (const std::string& id : way) {
      if (!from.empty()) edges += Edge(from, id);
      from = id;
    }
    if (!from.empty() && !to.empty()) edges += Edge(from, to);
  };
  for (const Node& node : graph.nodes()) {
    const auto to = ids.find(node.name);
    if (to == ids.end()) continue;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      const Value& value = graph.value(v);
      const bool made = value.producer != kNoNode;
      const auto from = made ? ids.find(graph.node(value.producer).name) : ids.end();
      const auto way = between.find({value.name, node.name});
      connect(from == ids.end() ? "" : from->second,
              way == between.end() ? std::vector<std::string>() : way->second, to->second);
      if (way != between.end()) between.erase(way);
    }
  }
  // For gradients: after those of the update.
  for (const auto& [edge, way] : between) connect("", way, "");
  return absl::StrCat("digraph operators {\n  node [shape=box];\n", nodes, edges, "}\n");
}

}  // namespace espalier
