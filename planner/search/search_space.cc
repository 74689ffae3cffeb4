#include "planner/search/search_space.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace espalier {
namespace {

// On more devices the space leaves out what rarely pays off: operators on volumes alone would have
// tens of thousands of configurations, and the tables between them take gigabytes.
constexpr int kMostEnumeratedDevices = 8;
constexpr int kMostAxes = 2;  // axes that an operator splits at once

// Returns all combinations of legal degrees with product at most `most`, of which at most `axes`
// exceed 1.
void Enumerate(const std::vector<std::vector<int>>& legal, size_t axis, int parts, int most,
               int axes, std::vector<int>* current, std::vector<std::vector<int>>* out) {
  if (axis == legal.size()) {
    out->push_back(*current);
    return;
  }
  for (int degree : legal[axis]) {
    if (parts * degree > most || (degree > 1 && axes == 0)) break;
    current->push_back(degree);
    Enumerate(legal, axis + 1, parts * degree, most, degree > 1 ? axes - 1 : axes, current, out);
    current->pop_back();
  }
}

int PartsOf(const std::vector<int>& degrees) {
  int parts = 1;
  for (int degree : degrees) parts *= degree;
  return parts;
}

struct SignatureLess {
  static bool Less(const TensorType& a, const TensorType& b) {
    return std::tie(a.dtype, a.dims) < std::tie(b.dtype, b.dims);
  }
  bool operator()(const std::pair<std::string, NodeTypes>& a,
                  const std::pair<std::string, NodeTypes>& b) const {
    if (a.first != b.first) return a.first < b.first;
    if (a.second.attributes.values() != b.second.attributes.values()) {
      return a.second.attributes.values() < b.second.attributes.values();
    }
    return std::lexicographical_compare(a.second.inputs.begin(), a.second.inputs.end(),
                                        b.second.inputs.begin(), b.second.inputs.end(), Less);
  }
};

}  // namespace

SearchSpace::SearchSpace(const PcgStructure& structure, const SpaceOptions& options)
    : structure_(structure),
      options_(options),
      degrees_(structure.nodes.size()),
      edges_(structure.nodes.size()),
      class_of_(structure.nodes.size(), -1) {
  std::map<std::pair<std::string, NodeTypes>, int, SignatureLess> classes;
  for (NodeId n : structure.LiveNodes()) {
    const PcgStructure::NodeInfo& info = structure.nodes[n];
    std::vector<std::vector<int>> legal;
    for (const Axis& axis : info.rule.axes) {
      legal.push_back(Allowed(axis) ? LegalDegrees(axis, options.num_devices)
                                    : std::vector<int>{1});
    }
    if (const NodeConfig* pinned = PinnedConfig(n); pinned != nullptr) {
      degrees_[n] = {pinned->degrees};
      class_of_[n] = static_cast<int>(classes_.size());
      classes_.push_back({n});
    } else {
      std::vector<int> current;
      const int axes =
          options.num_devices > kMostEnumeratedDevices ? kMostAxes : static_cast<int>(legal.size());
      Enumerate(legal, 0, 1, options.num_devices, axes, &current, &degrees_[n]);
      if (degrees_[n].size() > 1 || options.num_devices > 1) nodes_.push_back(n);
      const auto [it, inserted] =
          classes.try_emplace({info.def->name, info.types}, static_cast<int>(classes_.size()));
      if (inserted) classes_.emplace_back();
      class_of_[n] = it->second;
      classes_[it->second].push_back(n);
    }

    const Node& node = structure.graph().node(n);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      const Value& value = structure.graph().value(node.inputs[i]);
      if (value.producer == kNoNode) continue;
      const double bytes = static_cast<double>(std::max<int64_t>(value.type.bytes(), 1));
      edges_[n].push_back(
          {value.producer, bytes, false, static_cast<int>(i), value.producer_output});
      edges_[value.producer].push_back(
          {n, bytes, true, value.producer_output, static_cast<int>(i)});
    }
  }
}

bool SearchSpace::Allowed(const Axis& axis) const {
  switch (axis.kind) {
    case AxisKind::kSample:
      return options_.sample_parallel;
    case AxisKind::kAttribute:
      return options_.attribute_parallel;
    case AxisKind::kParameter:
    case AxisKind::kReduction:
      return options_.parameter_parallel;
  }
  return false;
}

std::vector<SearchSpace::Run> SearchSpace::Runs(int parts) const {
  const int n = options_.num_devices;
  std::vector<Run> runs;
  if (n <= kMostEnumeratedDevices) {
    for (int stride = 1; stride == 1 || (parts > 1 && (parts - 1) * stride < n); ++stride) {
      runs.push_back({stride, 1, n - (parts - 1) * stride});
    }
    return runs;
  }
  runs.push_back({1, parts, n / parts});
  if (parts > 1 && parts < n && n % parts == 0) runs.push_back({n / parts, 1, n / parts});
  return runs;
}

SearchSpace::Choice SearchSpace::DrawChoice(NodeId node, Random* random) const {
  Choice choice;
  choice.degrees = static_cast<int>(random->Below(static_cast<int64_t>(degrees_[node].size())));
  const std::vector<Run> runs = Runs(Parts(node, choice));
  const Run& run = runs[random->Below(static_cast<int64_t>(runs.size()))];
  choice.stride = run.stride;
  choice.start = run.step * static_cast<int>(random->Below(run.starts));
  return choice;
}

int SearchSpace::Parts(NodeId node, const Choice& choice) const {
  return PartsOf(degrees_[node][choice.degrees]);
}

NodeConfig SearchSpace::ConfigOf(NodeId node, const Choice& choice) const {
  if (const NodeConfig* pinned = PinnedConfig(node); pinned != nullptr) return *pinned;
  NodeConfig config;
  config.degrees = degrees_[node][choice.degrees];
  const int parts = Parts(node, choice);
  for (int i = 0; i < parts; ++i) config.devices.push_back(choice.start + i * choice.stride);
  return config;
}

std::vector<NodeConfig> SearchSpace::All(NodeId node) const {
  if (const NodeConfig* pinned = PinnedConfig(node); pinned != nullptr) return {*pinned};
  std::vector<NodeConfig> all;
  for (int degrees = 0; degrees < static_cast<int>(degrees_[node].size()); ++degrees) {
    for (const Run& run : Runs(PartsOf(degrees_[node][degrees]))) {
      for (int i = 0; i < run.starts; ++i) {
        all.push_back(ConfigOf(node, {degrees, run.stride, run.step * i}));
      }
    }
  }
  return all;
}

std::vector<NodeConfig> SearchSpace::OnFirstDevices(NodeId node) const {
  std::vector<NodeConfig> configs;
  for (int degrees = 0; degrees < static_cast<int>(degrees_[node].size()); ++degrees) {
    configs.push_back(ConfigOf(node, {degrees, 1, 0}));
  }
  std::stable_sort(configs.begin(), configs.end(), [](const NodeConfig& a, const NodeConfig& b) {
    return a.devices.size() > b.devices.size();
  });
  return configs;
}

int64_t SearchSpace::CountAll(NodeId node) const {
  if (PinnedConfig(node) != nullptr) return 1;
  int64_t count = 0;
  for (const std::vector<int>& degrees : degrees_[node]) {
    for (const Run& run : Runs(PartsOf(degrees))) count += run.starts;
  }
  return count;
}

bool SearchSpace::Follow(NodeId node, const NodeConfig& config, const Edge& edge,
                         NodeConfig* out) const {
  const SplitRule& own = structure_.nodes[node].rule;
  const SplitRule& other = structure_.nodes[edge.neighbor].rule;
  const std::vector<int>& here =
      edge.to_consumer ? own.outputs[edge.own_operand] : own.inputs[edge.own_operand];
  const std::vector<int>& there = edge.to_consumer ? other.inputs[edge.neighbour_operand]
                                                   : other.outputs[edge.neighbour_operand];
  out->degrees.assign(other.axes.size(), 1);
  out->devices = config.devices;
  for (size_t d = 0; d < here.size(); ++d) {
    const int degree = here[d] == kNotSplit ? 1 : config.degrees[here[d]];
    if (degree == 1) continue;
    if (there[d] == kNotSplit || !Allowed(other.axes[there[d]])) return false;
    out->degrees[there[d]] = degree;
  }
  const NodeConfig* pinned = PinnedConfig(edge.neighbor);
  if (pinned != nullptr && !(*pinned == *out)) return false;
  return CheckConfig(other, *out, options_.num_devices).ok();
}

const SearchSpace::Edge* SearchSpace::DrawEdge(NodeId node, Random* random) const {
  const std::vector<Edge>& edges = edges_[node];
  double total = 0;
  for (const Edge& edge : edges) total += edge.bytes;
  double at = random->Real() * total;
  for (const Edge& edge : edges) {
    at -= edge.bytes;
    if (at < 0) return &edge;
  }
  return edges.empty() ? nullptr : &edges.back();
}

}  // namespace espalier
