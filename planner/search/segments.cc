#include "planner/search/segments.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "ops/rewrite/graph_index.h"

namespace espalier {
namespace {

constexpr int kLongest = 4;  // times `least`
constexpr size_t kMostCrossing = 2;

// The trained values that cross the cut in front of each node.
class Crossings {
 public:
  explicit Crossings(const Graph& graph) : graph_(graph), index_(graph) {
    const NodeId end = static_cast<NodeId>(graph.nodes().size());
    starts_.resize(end + 1);
    ends_.resize(end + 1);
    for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
      const Value& value = graph.value(v);
      if (value.producer == kNoNode || !index_.IsTrained(v)) continue;
      NodeId last = value.producer;
      for (const auto& [reader, input] : index_.Readers(v)) last = std::max(last, reader);
      if (index_.IsOutput(v)) last = end;
      if (last == value.producer) continue;
      starts_[value.producer + 1].push_back(v);
      ends_[last].push_back(v);
    }
  }

  // Calls visit(node, values that cross in front of it) for all nodes but the first.
  template <typename Visit>
  void ForEach(Visit visit) const {
    std::set<ValueId> crossing;
    for (NodeId n = 1; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      for (ValueId v : starts_[n]) crossing.insert(v);
      for (ValueId v : ends_[n - 1]) crossing.erase(v);
      visit(n, crossing);
    }
  }

 private:
  const Graph& graph_;
  const GraphIndex index_;
  // By node, with one entry past the last: values that begin to cross in front of it, or end after
  // it.
  std::vector<std::vector<ValueId>> starts_, ends_;
};

class Extractor {
 public:
  Extractor(const Graph& graph, const Segment& segment)
      : graph_(graph), segment_(segment), copy_(graph.values().size(), kNoValue) {}

  SegmentGraph Run() {
    out_.graph.name = absl::StrCat(graph_.name, " from '", graph_.node(segment_.first).name, "'");
    for (ValueId v : segment_.in) StandIn(v);
    for (NodeId n = segment_.first; n < segment_.last; ++n) CopyNode(n);
    for (const auto& [name, value] : graph_.outputs) {
      const NodeId producer = graph_.value(value).producer;
      if (producer >= segment_.first && producer < segment_.last) {
        out_.graph.outputs.emplace_back(name, copy_[value]);
      }
    }
    // Untrained values that other segments read must stay.
    for (NodeId n = segment_.last; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      for (ValueId v : graph_.node(n).inputs) {
        if (v == kNoValue || graph_.value(v).producer < segment_.first) continue;
        if (graph_.value(v).producer >= segment_.last) continue;
        if (std::count(segment_.out.begin(), segment_.out.end(), v) > 0) continue;
        const std::string name = absl::StrCat("kept:", graph_.value(v).name);
        if (out_.graph.FindOutput(name) == kNoValue)
          out_.graph.outputs.emplace_back(name, copy_[v]);
      }
    }
    ValueId loss = kNoValue;
    for (ValueId v : segment_.out) loss = Weigh(v, loss);
    if (loss != kNoValue) out_.graph.outputs.emplace_back("loss", loss);
    return std::move(out_);
  }

 private:
  // An operator with a gradient: the sum of an input and a parameter.
  void StandIn(ValueId v) {
    const Value& value = graph_.value(v);
    const std::string name = absl::StrCat("before:", value.name);
    const ValueId x = out_.graph.AddValue(
        {.name = absl::StrCat(name, ":fed"), .type = value.type, .kind = ValueKind::kInput});
    const ValueId p = out_.graph.AddValue({.name = absl::StrCat(name, ":trained"),
                                           .type = value.type,
                                           .kind = ValueKind::kParameter});
    copy_[v] = out_.graph.AddValue({.name = value.name, .type = value.type});
    out_.graph.AddNode({.name = name, .op = "add", .inputs = {x, p}, .outputs = {copy_[v]}});
    out_.in.push_back(name);
  }

  ValueId Copy(ValueId v) {
    if (v == kNoValue || copy_[v] != kNoValue) return v == kNoValue ? v : copy_[v];
    Value value = graph_.value(v);
    // Untrained values are available in every layout.
    if (value.kind == ValueKind::kComputed) value.kind = ValueKind::kInput;
    if (value.kind == ValueKind::kParameter) value.constant.clear();
    value.producer = kNoNode;
    return copy_[v] = out_.graph.AddValue(std::move(value));
  }

  void CopyNode(NodeId n) {
    Node node = graph_.node(n);
    for (ValueId& v : node.inputs) v = Copy(v);
    for (ValueId& v : node.outputs) {
      if (v == kNoValue) continue;
      Value value = graph_.value(v);
      value.producer = kNoNode;
      v = copy_[v] = out_.graph.AddValue(std::move(value));
    }
    out_.graph.AddNode(std::move(node));
  }

  ValueId Op(const std::string& name, const std::string& op, std::vector<ValueId> inputs,
             std::vector<std::string>* kept) {
    const ValueId y = out_.graph.AddValue({.name = name});
    out_.graph.AddNode({.name = name, .op = op, .inputs = std::move(inputs), .outputs = {y}});
    kept->push_back(name);
    return y;
  }

  // Adds an element-wise weighted sum to the loss so far.
  ValueId Weigh(ValueId v, ValueId loss) {
    const Value& value = graph_.value(v);
    const std::string name = absl::StrCat("behind:", value.name);
    const ValueId weight = out_.graph.AddValue(
        {.name = absl::StrCat(name, ":fed"), .type = value.type, .kind = ValueKind::kInput});
    ValueId sum = Op(name, "multiply", {copy_[v], weight}, &out_.out);
    if (value.type.dtype != DType::kF32) {
      sum = Op(absl::StrCat(name, ":wide"), "cast", {sum}, &out_.rest);
      out_.graph.mutable_node(static_cast<NodeId>(out_.graph.nodes().size()) - 1)
          .attributes.Set("to", std::string("f32"));
    }
    sum = Op(absl::StrCat(name, ":sum"), "reduce_sum", {sum}, &out_.rest);
    if (loss == kNoValue) return sum;
    return Op(absl::StrCat(name, ":loss"), "add", {loss, sum}, &out_.rest);
  }

  const Graph& graph_;
  const Segment& segment_;
  std::vector<ValueId> copy_;  // by value of the whole graph
  SegmentGraph out_;
};

void Write(int64_t number, std::string* form) { absl::StrAppend(form, number, ","); }
void Write(bool flag, std::string* form) { absl::StrAppend(form, flag ? 1 : 0, ","); }
// All digits, because nearly equal values are not equal.
void Write(double number, std::string* form) { Write(std::bit_cast<int64_t>(number), form); }
void Write(const std::string& text, std::string* form) {
  absl::StrAppend(form, text.size(), ":", text);
}
template <typename T>
void Write(const std::vector<T>& list, std::string* form) {
  absl::StrAppend(form, list.size(), ":");
  for (const T& item : list) Write(item, form);
}

}  // namespace

std::vector<Segment> CutIntoSegments(const Graph& graph, const std::vector<bool>& crossed,
                                     int least) {
  std::vector<Segment> segments = {{}};
  // The last cut that separates coupled nodes, for segments that would get too long.
  Segment before, after;
  const auto cut = [&](const Segment& first, const Segment& second) {
    segments.back() = first;
    segments.push_back(second);
    after = {};
  };
  Crossings(graph).ForEach([&](NodeId n, const std::set<ValueId>& crossing) {
    Segment& open = segments.back();
    const int length = n - open.first;
    if (length < least || crossing.empty() || crossing.size() > kMostCrossing) return;
    const TensorType& type = graph.value(*crossing.begin()).type;
    for (ValueId v : crossing) {
      if (graph.value(v).type != type || !IsFloat(type.dtype)) return;
    }
    const std::vector<ValueId> values(crossing.begin(), crossing.end());
    const Segment first{open.first, n, open.in, values}, second{n, n, values, {}};
    if (!crossed[n]) return cut(first, second);
    if (after.first == 0) before = first, after = second;
    if (length > kLongest * least) return cut(Segment(before), Segment(after));
  });
  segments.back().last = static_cast<NodeId>(graph.nodes().size());
  return segments;
}

absl::StatusOr<SegmentGraph> MakeSegmentGraph(const OpRegistry& registry, const Graph& graph,
                                              const Segment& segment, int64_t batch) {
  SegmentGraph made = Extractor(graph, segment).Run();
  if (absl::Status s = BindAndInfer(registry, batch, &made.graph); !s.ok()) return s;
  return made;
}

std::string CanonicalForm(const Graph& graph) {
  std::string form;
  std::vector<int> number(graph.values().size(), -1);
  int next = 0;
  const auto add = [&](ValueId v) {
    if (v == kNoValue) {
      absl::StrAppend(&form, "_ ");
      return;
    }
    if (number[v] < 0) {
      const Value& value = graph.value(v);
      number[v] = next++;
      absl::StrAppend(&form, static_cast<int>(value.kind), value.trainable ? "t" : "f",
                      ToString(value.type));
      if (value.kind == ValueKind::kConstant) absl::StrAppend(&form, value.constant);
    }
    absl::StrAppend(&form, "%", number[v], " ");
  };
  for (const Node& node : graph.nodes()) {
    absl::StrAppend(&form, node.op, "(");
    for (ValueId v : node.inputs) add(v);
    for (const auto& [name, value] : node.attributes.values()) {
      absl::StrAppend(&form, name, "=", value.index(), ":");
      std::visit([&](const auto& v) { Write(v, &form); }, value);
    }
    absl::StrAppend(&form, ")");
    for (ValueId v : node.outputs) add(v);
    absl::StrAppend(&form, ";");
  }
  for (const auto& [name, value] : graph.outputs) {
    absl::StrAppend(&form, name == "loss" ? "loss" : "", "=");
    add(value);
  }
  return form;
}

}  // namespace espalier
