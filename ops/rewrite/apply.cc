#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/rewrite/match.h"

namespace espalier {
namespace {

// A node of the new graph.
struct Place {
  NodeId position = 0;  // of this node, or of the node that it replaces
  int match = -1;       // -1: the node at `position`
  int node = 0;         // of the replacement
};

class Applier {
 public:
  Applier(const RewriteRule& rule, const std::vector<Match>& matches, Graph* graph)
      : rule_(rule), matches_(matches), graph_(*graph) {}

  absl::Status Run() {
    Plan();
    if (!Sort()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rule '", rule_.name, "' cannot be applied to all of ", matches_.size(),
                       " places at once: each reads what another computes"));
    }
    Rebuild();
    return absl::OkStatus();
  }

 private:
  // Values of the replacement: ids in the graph, followed by new ids.
  void Plan() {
    const int nodes = static_cast<int>(graph_.nodes().size());
    removed_.assign(nodes, false);
    std::vector<std::vector<int>> ends(nodes);  // matches by their last node
    next_ = static_cast<ValueId>(graph_.values().size());
    for (size_t m = 0; m < matches_.size(); ++m) {
      for (NodeId id : matches_[m].nodes) removed_[id] = true;
      ends[matches_[m].nodes.back()].push_back(static_cast<int>(m));
      values_.push_back(matches_[m].values);
      for (const RuleNode& node : rule_.replacement) {
        for (int v : node.outputs) {
          if (v != kNoValue && values_[m][v] == kNoValue) values_[m][v] = next_++;
        }
      }
    }
    for (NodeId id = 0; id < nodes; ++id) {
      if (!removed_[id]) places_.push_back({.position = id});
      for (int m : ends[id]) {
        for (size_t n = 0; n < rule_.replacement.size(); ++n) {
          places_.push_back({.position = id, .match = m, .node = static_cast<int>(n)});
        }
      }
    }
  }

  std::vector<ValueId> Inputs(const Place& place) const {
    return place.match < 0 ? graph_.node(place.position).inputs
                           : Bound(place.match, rule_.replacement[place.node].inputs);
  }
  std::vector<ValueId> Outputs(const Place& place) const {
    return place.match < 0 ? graph_.node(place.position).outputs
                           : Bound(place.match, rule_.replacement[place.node].outputs);
  }
  std::vector<ValueId> Bound(int match, const std::vector<int>& values) const {
    std::vector<ValueId> bound;
    for (int v : values) bound.push_back(v == kNoValue ? kNoValue : values_[match][v]);
    return bound;
  }

  // Keeps the present order as far as operands allow; returns false if there is a cycle.
  bool Sort() {
    std::vector<int> producer(next_, -1);
    for (size_t p = 0; p < places_.size(); ++p) {
      for (ValueId v : Outputs(places_[p])) {
        if (v != kNoValue) producer[v] = static_cast<int>(p);
      }
    }
    std::vector<std::vector<int>> readers(places_.size());
    std::vector<int> waits(places_.size(), 0);
    std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
    for (size_t p = 0; p < places_.size(); ++p) {
      for (ValueId v : Inputs(places_[p])) {
        if (v == kNoValue || producer[v] < 0) continue;
        readers[producer[v]].push_back(static_cast<int>(p));
        ++waits[p];
      }
      if (waits[p] == 0) ready.push(static_cast<int>(p));
    }
    while (!ready.empty()) {
      const int p = ready.top();
      ready.pop();
      order_.push_back(p);
      for (int reader : readers[p]) {
        if (--waits[reader] == 0) ready.push(reader);
      }
    }
    return order_.size() == places_.size();
  }

  // From here on parts of the graph are moved from.
  void Rebuild() {
    std::vector<Node> nodes;
    std::vector<NodeId> now(graph_.nodes().size(), kNoNode);  // for Node::forward
    CollectNames();
    for (int p : order_) {
      const Place& place = places_[p];
      std::vector<ValueId> inputs = Inputs(place), outputs = Outputs(place);
      if (place.match < 0) now[place.position] = static_cast<NodeId>(nodes.size());
      nodes.push_back(place.match < 0 ? std::move(graph_.mutable_node(place.position))
                                      : NewNode(place));
      nodes.back().inputs = std::move(inputs);
      nodes.back().outputs = std::move(outputs);
    }
    Graph result;
    result.name = graph_.name;
    result.metadata = std::move(graph_.metadata);
    const std::vector<ValueId> kept = MoveValues(nodes, &result);
    for (Node& node : nodes) {
      for (ValueId& v : node.inputs) v = v == kNoValue ? v : kept[v];
      for (ValueId& v : node.outputs) v = v == kNoValue ? v : kept[v];
      if (node.forward != kNoNode) node.forward = now[node.forward];
      result.AddNode(std::move(node));
    }
    for (auto& [name, value] : graph_.outputs) {
      result.outputs.emplace_back(std::move(name), kept[value]);
    }
    graph_ = std::move(result);
  }

  void CollectNames() {
    if (next_ == static_cast<ValueId>(graph_.values().size())) return;
    for (const Value& value : graph_.values()) names_.insert(value.name);
    for (const Node& node : graph_.nodes()) names_.insert(node.name);
  }

  std::string FreeName(std::string name) {
    while (!names_.insert(name).second) name += "_";
    return name;
  }

  // The node of the pattern that computes value `v` of the rule; -1 if none does.
  int PatternNodeOf(int v) const {
    for (size_t n = 0; n < rule_.pattern.size(); ++n) {
      const std::vector<int>& outputs = rule_.pattern[n].outputs;
      if (v != kNoValue && std::count(outputs.begin(), outputs.end(), v) > 0) {
        return static_cast<int>(n);
      }
    }
    return -1;
  }

  // Takes the name of the node that computed its first output before; otherwise named after its
  // position.
  Node NewNode(const Place& place) {
    const Match& match = matches_[place.match];
    const RuleNode& wanted = rule_.replacement[place.node];
    Node node{.op = wanted.op, .attributes = match.attributes[place.node]};
    node.source = graph_.node(match.nodes.back()).source;
    const std::string& root = RootName(match.nodes.back());
    for (int v : wanted.outputs) {
      const int before = PatternNodeOf(v);
      if (before >= 0 && node.name.empty()) node.name = RootName(match.nodes[before]);
      if (v == kNoValue || match.values[v] != kNoValue) continue;
      Value value{.name = FreeName(absl::StrCat(root, ".", rule_.values[v].name)),
                  .type = match.types[v]};
      new_values_.emplace(values_[place.match][v], std::move(value));
    }
    if (node.name.empty()) node.name = new_values_.at(Outputs(place)[0]).name;
    return node;
  }

  const std::string& RootName(NodeId id) const { return graph_.node(id).name; }

  // Removes values that nothing computes any more, and constants that nobody reads.
  std::vector<ValueId> MoveValues(const std::vector<Node>& nodes, Graph* result) {
    std::vector<bool> read(next_, false), computed(next_, false), was_read(next_, false);
    for (const Node& node : nodes) {
      for (ValueId v : node.inputs) {
        if (v != kNoValue) read[v] = true;
      }
      for (ValueId v : node.outputs) {
        if (v != kNoValue) computed[v] = true;
      }
    }
    for (const auto& [name, value] : graph_.outputs) read[value] = true;
    for (const Match& match : matches_) {
      for (ValueId v : match.values) {
        if (v != kNoValue) was_read[v] = true;
      }
    }
    std::vector<ValueId> kept(next_, kNoValue);
    for (ValueId v = 0; v < next_; ++v) {
      const bool is_new = v >= static_cast<ValueId>(graph_.values().size());
      Value value = is_new ? std::move(new_values_.at(v)) : std::move(graph_.mutable_value(v));
      if (value.kind == ValueKind::kComputed && !computed[v]) continue;
      if (value.kind == ValueKind::kConstant && was_read[v] && !read[v]) continue;
      value.producer = kNoNode;
      kept[v] = result->AddValue(std::move(value));
    }
    return kept;
  }

  const RewriteRule& rule_;
  const std::vector<Match>& matches_;
  Graph& graph_;
  std::vector<bool> removed_;
  std::vector<std::vector<ValueId>> values_;  // by match and value of the rule
  ValueId next_ = 0;
  std::vector<Place> places_;
  std::vector<int> order_;
  std::set<std::string> names_;
  std::map<ValueId, Value> new_values_;
};

}  // namespace

absl::Status ApplyAll(const RewriteRule& rule, const std::vector<Match>& matches, Graph* graph) {
  return Applier(rule, matches, graph).Run();
}

absl::StatusOr<Graph> Apply(const OpRegistry& registry, const Graph& graph, const RewriteRule& rule,
                            const Match& match) {
  // Searches again instead of trusting the match: one of another graph would index out of range.
  for (const Match& found : FindMatches(registry, graph, rule)) {
    if (found.nodes != match.nodes || found.values != match.values) continue;
    Graph result = graph;
    if (absl::Status status = ApplyAll(rule, {found}, &result); !status.ok()) return status;
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rule '", rule.name, "' does not fit graph '", graph.name,
                   "' at this match; expected one that FindMatches gave for it"));
}

}  // namespace espalier
