#include "planner/report/testing.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

constexpr absl::string_view kForbidden[] = {"script", "iframe", "object", "embed", "link",
                                            "img",    "form",   "base",   "use",   "image"};

class PageParser {
 public:
  explicit PageParser(absl::string_view page) : page_(page) {}

  absl::StatusOr<std::vector<Element>> Parse() {
    constexpr absl::string_view kDoctype = "<!DOCTYPE html>\n";
    if (!absl::StartsWith(page_, kDoctype)) return Bad("no doctype");
    at_ = kDoctype.size();
    // Line breaks are the only control characters of the page.
    std::string lines(page_);
    std::replace(lines.begin(), lines.end(), '\n', ' ');
    if (Printable(lines) != lines) return Bad("control character or no UTF-8");
    while (at_ < page_.size()) {
      const absl::Status status = page_[at_] == '<' ? Tag() : Text();
      if (!status.ok()) return status;
    }
    if (open_ != -1) return Bad(absl::StrCat("<", elements_[open_].name, "> is not closed"));
    return std::move(elements_);
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " at byte ", at_, ": ", page_.substr(at_ < 60 ? 0 : at_ - 60, 120)));
  }

  bool Take(absl::string_view text) {
    if (!absl::StartsWith(page_.substr(at_), text)) return false;
    at_ += text.size();
    return true;
  }

  std::string Name() {
    const size_t begin = at_;
    while (at_ < page_.size() && (absl::ascii_isalnum(page_[at_]) || page_[at_] == '-')) ++at_;
    return std::string(page_.substr(begin, at_ - begin));
  }

  // Reads up to `end`, exclusive.
  absl::Status Content(char end, std::string* out) {
    static constexpr std::pair<absl::string_view, char> kEntities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}};
    while (at_ < page_.size() && page_[at_] != end) {
      if (page_[at_] == '<') return Bad("stray <");
      if (page_[at_] != '&') {
        out->push_back(page_[at_++]);
        continue;
      }
      const auto known = std::find_if(std::begin(kEntities), std::end(kEntities),
                                      [&](const auto& entity) { return Take(entity.first); });
      if (known == std::end(kEntities)) return Bad("unknown entity");
      out->push_back(known->second);
    }
    return absl::OkStatus();
  }

  absl::Status Text() {
    std::string text;
    if (absl::Status status = Content('<', &text); !status.ok()) return status;
    for (int e = open_; e >= 0; e = elements_[e].parent) elements_[e].text += text;
    const bool blank = text.find_first_not_of(" \n") == std::string::npos;
    return open_ < 0 && !blank ? Bad("text outside the page") : absl::OkStatus();
  }

  absl::Status Tag() {
    if (Take("</")) {
      const std::string name = Name();
      if (open_ < 0 || elements_[open_].name != name || !Take(">")) {
        return Bad(absl::StrCat("</", name, "> closes nothing"));
      }
      open_ = elements_[open_].parent;
      return absl::OkStatus();
    }
    Take("<");
    Element element;
    element.name = Name();
    element.parent = open_;
    if (element.name.empty()) return Bad("tag without a name");
    for (absl::string_view forbidden : kForbidden) {
      if (element.name == forbidden) return Bad("forbidden element");
    }
    while (Take(" ")) {
      if (absl::Status status = Attribute(&element); !status.ok()) return status;
    }
    const bool empty = Take("/>");
    if (!empty && !Take(">")) return Bad("tag does not end");
    if (open_ < 0 && !elements_.empty()) return Bad("two roots");
    if (!empty) open_ = static_cast<int>(elements_.size());
    elements_.push_back(std::move(element));
    return absl::OkStatus();
  }

  absl::Status Attribute(Element* element) {
    const std::string name = Name();
    std::string value;
    if (name.empty() || !Take("=\"")) return Bad("attribute without a value in quotes");
    if (absl::Status status = Content('"', &value); !status.ok()) return status;
    if (!Take("\"")) return Bad("attribute does not end");
    if (absl::StartsWith(name, "on")) return Bad("attribute that runs something");
    if (name == "src" || (name == "href" && !absl::StartsWith(value, "#"))) return Bad("address");
    if (absl::StrContains(value, "url(") && !absl::StrContains(value, "url(#")) {
      return Bad("address");
    }
    if (!element->attributes.emplace(name, value).second) return Bad("attribute twice");
    return absl::OkStatus();
  }

  absl::string_view page_;
  size_t at_ = 0;
  int open_ = -1;
  std::vector<Element> elements_;
};

std::vector<int> FirstDevices(int count) {
  std::vector<int> devices;
  for (int d = 0; d < count; ++d) devices.push_back(d);
  return devices;
}

void AddOperator(const Graph& graph, NodeId n, int devices, v1::Plan* plan) {
  const Node& node = graph.node(n);
  v1::OperatorPlan* op = plan->add_operators();
  op->set_node(node.name);
  op->set_op(node.op);
  const bool halves = node.op == "linear" && devices > 1;
  (*op->mutable_degrees())[halves ? "out" : "sample"] = halves ? devices / 2 : devices;
  for (int d : FirstDevices(halves ? devices / 2 : devices)) op->add_devices(d);
  op->set_predicted_seconds(3e-3);
  for (ValueId v : node.inputs) {
    const Value& value = graph.value(v);
    v1::ParallelOperator change;
    if (value.kind == ValueKind::kParameter) {
      change.set_kind(v1::ParallelOperator::REDUCE);
      change.set_tensor(absl::StrCat(value.name, ".grad"));
      change.set_consumer("update");
      change.set_bytes(2 << 20);
    } else if (halves) {
      change.set_kind(v1::ParallelOperator::COMBINE);
      change.set_tensor(value.name);
      change.set_consumer(node.name);
      change.set_bytes(1 << 20);
    } else {
      continue;
    }
    change.set_degree(devices);
    *plan->add_parallel_operators() = change;
  }
}

}  // namespace

std::string Element::Attribute(const std::string& attribute) const {
  const auto it = attributes.find(attribute);
  return it == attributes.end() ? "" : it->second;
}

bool Element::HasClass(const std::string& css_class) const {
  const std::vector<std::string> classes = absl::StrSplit(Attribute("class"), ' ');
  return std::find(classes.begin(), classes.end(), css_class) != classes.end();
}

double Element::Number(const std::string& attribute) const {
  double value = 0;
  EXPECT_TRUE(absl::SimpleAtod(Attribute(attribute), &value)) << name << " " << attribute;
  return value;
}

absl::StatusOr<std::vector<Element>> ParsePage(absl::string_view page) {
  return PageParser(page).Parse();
}

Graph LayeredGraph(int layers) {
  Graph graph;
  graph.name = "layered";
  auto add = [&](const std::string& name, const std::string& op, std::vector<ValueId> inputs) {
    if (op == "linear") {
      inputs.push_back(graph.AddValue(
          {absl::StrCat(name, ".weight"), {DType::kF32, {16, 16}}, ValueKind::kParameter}));
    }
    const ValueId out = graph.AddValue({absl::StrCat(name, ".out"), {DType::kF32, {8, 16}}});
    graph.AddNode({name, op, {}, std::move(inputs), {out}});
    return out;
  };
  ValueId h = graph.AddValue({"x", {DType::kF32, {8, 16}}, ValueKind::kInput});
  h = add("embed", "embedding", {h});
  for (int l = 0; l < layers; ++l) {
    h = add(absl::StrCat("layers.", l, ".fc"), "linear", {h});
    h = add(absl::StrCat("layers.", l, ".act"), "relu", {h});
  }
  graph.outputs = {{"loss", add("loss", "mean", {h})}};
  return graph;
}

v1::Plan LayeredPlan(int layers, int devices) {
  v1::Plan plan;
  plan.set_format_version(1);
  plan.set_graph_fingerprint("0123456789abcdef0123456789abcdef");
  plan.set_batch_size(8);
  const Graph graph = LayeredGraph(layers);
  v1::Prediction* prediction = plan.mutable_prediction();
  for (int d = 0; d < devices; ++d) {
    v1::Device* device = plan.add_devices();
    device->set_kind(v1::Device::CUDA);
    device->set_model("NVIDIA H200");
    device->set_memory_bytes(int64_t{1} << 30);
    prediction->add_peak_bytes(int64_t{512} << 20);
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    AddOperator(graph, static_cast<NodeId>(n), devices, &plan);
  }
  prediction->set_step_seconds(0.1);
  prediction->set_compute_seconds(0.08);
  prediction->set_communication_seconds(0.02);
  prediction->set_bytes_moved(3 << 20);
  v1::Alternative* slower = plan.add_alternatives();
  slower->set_name("data parallel");
  *slower->mutable_prediction() = *prediction;
  slower->mutable_prediction()->set_step_seconds(0.15);
  slower->mutable_prediction()->set_communication_seconds(0.07);
  v1::Alternative* refused = plan.add_alternatives();
  refused->set_name("single device");
  refused->mutable_prediction()->set_step_seconds(0.2);
  refused->mutable_prediction()->set_compute_seconds(0.2);
  refused->mutable_prediction()->add_peak_bytes(int64_t{3} << 29);
  refused->set_refused("device 0 needs 1610612736 bytes but has 1073741824");
  plan.mutable_search()->set_budget(1000);
  plan.mutable_search()->set_proposals(1000);
  plan.mutable_search()->set_accepted(321);
  plan.mutable_search()->set_seconds(0.5);
  plan.mutable_search()->set_seed(7);
  plan.mutable_search()->set_alpha(1);
  return plan;
}

Timeline LayeredTimeline(const v1::Plan& plan) {
  Timeline timeline;
  const int devices = plan.devices_size();
  for (int d = 0; d < devices; ++d) {
    MemoryCurve memory;
    memory.limit = plan.devices(d).memory_bytes();
    double now = 0;
    int64_t bytes = 0;
    auto add = [&](TimelineTask::Kind kind, double seconds, double moved, const std::string& node) {
      timeline.tasks.push_back({kind, d, now, now + seconds, moved > 0, moved, node});
      bytes += kind == TimelineTask::kForward    ? 1 << 20
               : kind == TimelineTask::kBackward ? -(1 << 20)
                                                 : 0;
      memory.seconds.push_back(now);
      memory.bytes.push_back(bytes);
      now += seconds;
    };
    for (const v1::OperatorPlan& op : plan.operators()) {
      add(TimelineTask::kForward, 1e-3, 0, op.node());
    }
    for (int i = plan.operators_size(); i-- > 0;) {
      add(TimelineTask::kBackward, 2e-3, 0, plan.operators(i).node());
    }
    add(TimelineTask::kGradientSync, 4e-3, 1 << 20, "layers.0.fc.weight");
    add(TimelineTask::kUpdate, 1e-3, 0, "layers.0.fc.weight");
    timeline.seconds = now;
    timeline.memory.push_back(std::move(memory));
    timeline.links.push_back({absl::StrCat("device ", d, " -> switch"), 1e6 * (d + 1), 1e9});
  }
  std::stable_sort(timeline.tasks.begin(), timeline.tasks.end(),
                   [](const TimelineTask& a, const TimelineTask& b) { return a.begin < b.begin; });
  return timeline;
}

}  // namespace espalier
