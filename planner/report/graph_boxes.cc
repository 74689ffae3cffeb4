#include "planner/report/graph_boxes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/report/format.h"

namespace espalier {
namespace {

// More tell a reader nothing.
constexpr size_t kMaxNotes = 6;

void AddNote(std::vector<std::string>* notes, std::string note) {
  if (notes->size() < kMaxNotes) {
    notes->push_back(std::move(note));
  } else if (notes->size() == kMaxNotes) {
    notes->push_back("and more");
  }
}

using TensorAndConsumer = std::pair<std::string, std::string>;
using ChangeIndex = std::map<TensorAndConsumer, std::vector<const v1::ParallelOperator*>>;

ChangeIndex IndexChanges(const v1::Plan& plan) {
  ChangeIndex index;
  for (const v1::ParallelOperator& op : plan.parallel_operators()) {
    index[{op.tensor(), op.consumer()}].push_back(&op);
  }
  return index;
}

// "combine ×4 of dimension 1, then move", and the bytes.
std::string ChangesText(const std::vector<const v1::ParallelOperator*>& changes) {
  double bytes = 0;
  std::vector<std::string> parts;
  for (const v1::ParallelOperator* op : changes) {
    bytes += op->bytes();
    std::string part = KindAndDegree(*op);
    const bool of_dimension = op->kind() == v1::ParallelOperator::PARTITION ||
                              op->kind() == v1::ParallelOperator::COMBINE ||
                              op->kind() == v1::ParallelOperator::ALL_TO_ALL;
    if (of_dimension) absl::StrAppend(&part, " of dimension ", op->dimension());
    parts.push_back(std::move(part));
  }
  return absl::StrCat(absl::StrJoin(parts, ", then "), ": ", ReadableBytes(bytes), " per step");
}

class Builder {
 public:
  Builder(const v1::Plan& plan, const Graph& graph, const BoxOptions& options)
      : plan_(plan), graph_(graph), options_(options), changes_(IndexChanges(plan)) {}

  BoxGraph Build() {
    IndexOperators();
    AssignBoxes();
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      if (box_of_node_[n] >= 0) AddInputs(graph_.nodes()[n], box_of_node_[n]);
    }
    if (out_.collapsed) SortBoxes();
    for (auto& [ends, edge] : edges_) {
      edge.change = absl::StrJoin(kinds_[ends], " + ");
      edge.to_next_layer = edge.from > edge.to;
      out_.edges.push_back(std::move(edge));
    }
    LimitEdges();
    return std::move(out_);
  }

 private:
  void IndexOperators() {
    for (int i = 0; i < plan_.operators_size(); ++i) {
      operator_of_.try_emplace(plan_.operators(i).node(), i);
    }
    rows_ = GroupOperators(plan_);
    row_of_operator_.resize(plan_.operators_size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      for (int i : rows_[r].operators) row_of_operator_[i] = static_cast<int>(r);
    }
    int known = 0;
    for (const Node& node : graph_.nodes()) {
      if (node.forward != kNoNode) continue;
      ++out_.operators;
      known += operator_of_.contains(node.name);
    }
    out_.unknown = static_cast<int>(operator_of_.size()) - known;
    out_.collapsed = out_.operators > options_.collapse_above;
  }

  // Boxes in the order of their first operator.
  void AssignBoxes() {
    std::map<std::pair<int, std::string>, int> box_of_key;
    box_of_node_.assign(graph_.nodes().size(), -1);
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (node.forward != kNoNode) continue;
      const auto known = operator_of_.find(node.name);
      const int row = known == operator_of_.end() ? -1 : row_of_operator_[known->second];
      // Rows separate what differs; operators without a row have only name and kind.
      std::string key = node.name;
      if (out_.collapsed) {
        key = row >= 0 ? "" : absl::StrCat(SplitNumber(node.name).Pattern(), "\n", node.op);
      }
      const auto [it, inserted] =
          box_of_key.try_emplace({row, key}, static_cast<int>(out_.boxes.size()));
      if (inserted) {
        if (static_cast<int>(out_.boxes.size()) == options_.max_boxes) {
          box_of_key.erase(it);
          ++out_.left_out;
          continue;
        }
        out_.boxes.push_back(NewBox(node, row));
      }
      box_of_node_[n] = it->second;
      GraphBox& box = out_.boxes[it->second];
      ++box.count;
      if (row >= 0) box.seconds += plan_.operators(known->second).predicted_seconds();
    }
  }

  NodeId NumNodes() const { return static_cast<NodeId>(graph_.nodes().size()); }

  GraphBox NewBox(const Node& node, int row) {
    GraphBox box;
    box.op = node.op;
    if (row < 0) {
      box.name = out_.collapsed ? SplitNumber(node.name).Pattern() : node.name;
      return box;
    }
    box.name = out_.collapsed ? rows_[row].Name() : node.name;
    box.split = rows_[row].split;
    box.devices = rows_[row].Devices();
    box.view = out_.views.Index(rows_[row].devices);
    return box;
  }

  const std::vector<const v1::ParallelOperator*>* ChangesOf(const std::string& tensor,
                                                            const std::string& consumer) const {
    const auto it = changes_.find({tensor, consumer});
    return it == changes_.end() ? nullptr : &it->second;
  }

  void AddInputs(const Node& node, int box) {
    std::set<ValueId> seen;
    for (ValueId v : node.inputs) {
      if (v < 0 || v >= static_cast<ValueId>(graph_.values().size())) continue;
      if (!seen.insert(v).second) continue;
      const Value& value = graph_.value(v);
      const auto* changes = ChangesOf(value.name, node.name);
      const bool produced = value.producer >= 0 && value.producer < NumNodes();
      const int from = produced ? box_of_node_[value.producer] : -1;
      if (from >= 0 && from != box) {
        AddToEdge(from, box, value, changes);
        if (!LeadsToAnotherLayer(graph_.node(value.producer), node)) within_.insert({from, box});
      } else if (changes != nullptr) {
        AddToBox(box, absl::StrCat(value.name, ": "), *changes);
      }
      if (value.kind != ValueKind::kParameter || !with_gradient_.insert(v).second) continue;
      // MakePlan's name for the sum of a parameter's gradient.
      const auto* sums = ChangesOf(absl::StrCat(value.name, ".grad"), "update");
      if (sums != nullptr) AddToBox(box, absl::StrCat("gradient of ", value.name, ": "), *sums);
    }
  }

  void AddToBox(int index, const std::string& what,
                const std::vector<const v1::ParallelOperator*>& changes) {
    GraphBox& box = out_.boxes[index];
    for (const v1::ParallelOperator* op : changes) box.parameter_bytes += op->bytes();
    AddNote(&box.notes, absl::StrCat(what, ChangesText(changes)));
  }

  void AddToEdge(int from, int to, const Value& value,
                 const std::vector<const v1::ParallelOperator*>* changes) {
    GraphEdge& edge = edges_[{from, to}];
    edge.from = from;
    edge.to = to;
    std::string note = absl::StrCat(value.name, " ", ToString(value.type));
    if (changes != nullptr) {
      absl::StrAppend(&note, ": ", ChangesText(*changes));
      for (const v1::ParallelOperator* op : *changes) {
        edge.bytes += op->bytes();
        kinds_[{from, to}].insert(KindText(op->kind()));
      }
    }
    AddNote(&edge.notes, std::move(note));
  }

  // Layers of the same series.
  static bool LeadsToAnotherLayer(const Node& from, const Node& to) {
    const NumberedName a = SplitNumber(from.name), b = SplitNumber(to.name);
    return a.number >= 0 && b.number >= 0 && a.number != b.number && a.prefix == b.prefix;
  }

  // Boxes of repeated layers form cycles. Edges within a layer, and into and out of the layers, go
  // down the page; the remaining edges lead to the next layer.
  void SortBoxes() {
    const int count = static_cast<int>(out_.boxes.size());
    std::vector<std::vector<int>> next(count);
    std::vector<int> waits_for(count, 0);
    for (const auto& [from, to] : within_) {
      next[from].push_back(to);
      ++waits_for[to];
    }
    std::set<int> ready, waiting;
    for (int b = 0; b < count; ++b) (waits_for[b] == 0 ? ready : waiting).insert(b);
    std::vector<int> place(count);
    std::vector<GraphBox> sorted;
    while (!ready.empty() || !waiting.empty()) {
      std::set<int>& from = ready.empty() ? waiting : ready;  // a cycle is cut at its first box
      const int box = *from.begin();
      from.erase(from.begin());
      place[box] = static_cast<int>(sorted.size());
      sorted.push_back(std::move(out_.boxes[box]));
      for (int to : next[box]) {
        if (--waits_for[to] == 0 && waiting.erase(to) > 0) ready.insert(to);
      }
    }
    out_.boxes = std::move(sorted);
    for (auto& [ends, edge] : edges_) {
      edge.from = place[edge.from];
      edge.to = place[edge.to];
    }
  }

  // Keeps the most informative edges: those with a layout conversion first.
  void LimitEdges() {
    const int surplus = static_cast<int>(out_.edges.size()) - options_.max_edges;
    if (surplus <= 0) return;
    std::stable_sort(out_.edges.begin(), out_.edges.end(),
                     [](const GraphEdge& a, const GraphEdge& b) {
                       return !a.change.empty() && b.change.empty();
                     });
    out_.edges.resize(options_.max_edges);
    out_.edges_left_out = surplus;
  }

  const v1::Plan& plan_;
  const Graph& graph_;
  const BoxOptions& options_;
  const ChangeIndex changes_;
  BoxGraph out_;
  std::map<std::string, int> operator_of_;  // by name of the node
  std::vector<OperatorRow> rows_;
  std::vector<int> row_of_operator_;
  std::vector<int> box_of_node_;  // -1: not shown
  std::map<std::pair<int, int>, GraphEdge> edges_;
  std::map<std::pair<int, int>, std::set<std::string>> kinds_;
  std::set<std::pair<int, int>> within_;  // of edges_, those that stay in one layer
  std::set<ValueId> with_gradient_;
};

}  // namespace

BoxGraph MakeBoxGraph(const v1::Plan& plan, const Graph& graph, const BoxOptions& options) {
  return Builder(plan, graph, options).Build();
}

}  // namespace espalier
