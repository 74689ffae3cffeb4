#include "server/jobs/match_predictions.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/prediction_form.h"

namespace espalier {
namespace {

// The smallest normal f32: its logarithm is finite.
constexpr double kLeastProbability = 0x1p-126;
constexpr char kOnce[] = "; once if you say from_logits=false, or let the model end without it";

// Adds nodes to a graph directly behind what they read, so that the order stays topological.
class NodeInserter {
 public:
  explicit NodeInserter(Graph* graph) : graph_(*graph) {
    for (const Value& value : graph_.values()) names_.insert(value.name);
    for (const Node& node : graph_.nodes()) names_.insert(node.name);
    for (const Value& value : graph_.values()) behind_.push_back(value.producer);
  }

  ValueId Add(const std::string& name, const std::string& op, Attributes attributes,
              std::vector<ValueId> inputs) {
    Value value;
    value.name = name;
    while (!names_.insert(value.name).second) value.name = absl::StrCat("_", value.name);
    Node node;
    node.name = value.name;
    node.op = op;
    node.attributes = std::move(attributes);
    NodeId behind = kNoNode;
    for (ValueId v : inputs) {
      if (v != kNoValue) behind = std::max(behind, behind_[static_cast<size_t>(v)]);
    }
    node.inputs = std::move(inputs);
    const ValueId id = graph_.AddValue(std::move(value));
    node.outputs = {id};
    behind_.push_back(behind);
    added_[behind].push_back(std::move(node));
    return id;
  }

  void Finish() {
    if (added_.empty()) return;
    Graph result;
    result.name = graph_.name;
    result.metadata = graph_.metadata;
    result.outputs = graph_.outputs;
    for (const Value& value : graph_.values()) result.AddValue(value);
    const auto add_behind = [&](NodeId n) {
      const auto found = added_.find(n);
      if (found == added_.end()) return;
      for (Node& node : found->second) result.AddNode(std::move(node));
    };
    add_behind(kNoNode);
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      result.AddNode(graph_.node(n));
      add_behind(n);
    }
    graph_ = std::move(result);
  }

 private:
  Graph& graph_;
  std::set<std::string> names_;
  std::vector<NodeId> behind_;                 // by value: the node that computes it or is before
  std::map<NodeId, std::vector<Node>> added_;  // by the node that they follow
};

class Matcher {
 public:
  Matcher(const OpRegistry& registry, const MatchOptions& options, Graph* graph)
      : registry_(registry), options_(options), graph_(*graph), inserter_(graph) {}

  absl::StatusOr<std::vector<std::string>> Run(int64_t batch) {
    if (absl::Status s = TakeFromLogits(); !s.ok()) return s;
    bound_ = graph_;
    if (absl::Status s = BindAndInfer(registry_, batch, &bound_); !s.ok()) return s;
    const NodeId count = static_cast<NodeId>(graph_.nodes().size());
    // Losses first: metrics follow them.
    for (const bool metrics : {false, true}) {
      for (NodeId n = options_.first; n < count; ++n) {
        const OpDef* def = registry_.Find(graph_.node(n).op);
        if (!(def->is_loss || def->is_metric) || def->is_metric != metrics) continue;
        if (absl::Status s = Match(n, *def); !s.ok()) return s;
      }
    }
    inserter_.Finish();
    return std::move(notes_);
  }

 private:
  // Removes `from_logits` from operators that do not have it, and remembers those that are given.
  absl::Status TakeFromLogits() {
    for (NodeId n = options_.first; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      Node& node = graph_.mutable_node(n);
      const OpDef* def = registry_.Find(node.op);
      if (def == nullptr || def->prediction == Prediction::kValues ||
          !node.attributes.Has(kFromLogits)) {
        continue;
      }
      if (node.attributes.Bool(kFromLogits, true) != node.attributes.Bool(kFromLogits, false)) {
        return absl::InvalidArgumentError(
            absl::StrCat(Describe(node), ": attribute 'from_logits' is no bool"));
      }
      given_[n] = node.attributes.Bool(kFromLogits);
      if (!HasFromLogits(*def)) node.attributes.Erase(kFromLogits);
    }
    return absl::OkStatus();
  }

  static bool HasFromLogits(const OpDef& def) {
    return std::any_of(def.attributes.begin(), def.attributes.end(),
                       [](const AttributeSpec& spec) { return spec.name == kFromLogits; });
  }

  std::string Quoted(ValueId v) const { return absl::StrCat("'", graph_.value(v).name, "'"); }

  // The logits of a form, in the shape of the tensor that has the form.
  ValueId LogitsOf(const PredictionForm& form) {
    std::pair<ValueId, std::vector<NodeId>> key = {form.logits, form.views};
    if (const auto known = logits_.find(key); known != logits_.end()) return known->second;
    ValueId v = form.logits;
    for (NodeId n : form.views) {
      const Node& view = graph_.node(n);
      std::vector<ValueId> inputs = view.inputs;
      inputs[0] = v;
      v = inserter_.Add(absl::StrCat(graph_.node(n).name, ".logits"), view.op, view.attributes,
                        std::move(inputs));
    }
    return logits_[std::move(key)] = v;
  }

  // The logarithms of probabilities.
  ValueId LogarithmOf(ValueId v) {
    if (const auto known = logarithms_.find(v); known != logarithms_.end()) return known->second;
    const std::string name = graph_.value(v).name;
    const ValueId bounded =
        inserter_.Add(absl::StrCat(name, ".bounded"), "clip", {{"min", kLeastProbability}}, {v});
    return logarithms_[v] = inserter_.Add(absl::StrCat(name, ".log"), "log", {}, {bounded});
  }

  // The dimension of the classes for a loss of `def`.
  int ClassAxis(const OpDef& def, ValueId v) const {
    if (def.prediction == Prediction::kLogProbabilities) return 1;
    return static_cast<int>(bound_.value(v).type.dims.size()) - 1;
  }

  absl::Status Unclear(NodeId n, const std::string& found, const std::string& expected) const {
    const Node& node = graph_.node(n);
    return absl::InvalidArgumentError(absl::StrCat(
        "loss '", node.op, "' on ", Quoted(node.inputs[0]), ": that tensor holds ", found, ", and ",
        node.op, " takes ", expected, ". Say from_logits=true to have its values taken as ",
        "logits nevertheless, from_logits=false as probabilities, or put the loss on the ",
        "tensor before"));
  }

  void Note(NodeId n, const std::string& text) {
    notes_.push_back(
        absl::StrCat(graph_.node(n).op, " on ", Quoted(graph_.node(n).inputs[0]), ": ", text));
  }

  absl::Status Match(NodeId n, const OpDef& def) {
    const ValueId v = graph_.node(n).inputs[0];
    std::optional<bool> given;
    if (const auto at = given_.find(n); at != given_.end()) given = at->second;
    if (def.is_metric && !given.has_value()) {
      if (const auto loss = of_loss_.find(v); loss != of_loss_.end()) given = loss->second;
    }
    if (def.is_loss && given.has_value()) of_loss_[v] = *given;
    const PredictionForm form = FormOf(bound_, v);
    const size_t notes = notes_.size();
    absl::Status status;
    switch (def.prediction) {
      case Prediction::kValues:
        break;
      case Prediction::kClassLogits:
        status = MatchClassLogits(n, def, form, given);
        break;
      case Prediction::kBinaryLogits:
        status = MatchBinaryLogits(n, form, given);
        break;
      case Prediction::kLogProbabilities:
        status = MatchLogProbabilities(n, form, given);
        break;
      case Prediction::kClassScores:
        MatchScores(n, def, form, given);
        break;
      case Prediction::kBinaryScores:
        MatchThreshold(n, form, given);
        break;
    }
    if (def.is_metric) notes_.resize(std::min(notes, notes_.size()));
    return status;
  }

  // Whether the classes' softmax is known to be `form`.
  static bool IsSoftmaxAlong(const PredictionForm& form, int axis) {
    return form.function == PredictionForm::kSoftmax && form.axis == axis;
  }

  absl::Status MatchClassLogits(NodeId n, const OpDef& def, const PredictionForm& form,
                                std::optional<bool> given) {
    Node& node = graph_.mutable_node(n);
    const ValueId v = node.inputs[0];
    const int axis = ClassAxis(def, v);
    const bool own = HasFromLogits(def);
    if (given.value_or(false)) {
      if (IsSoftmaxAlong(form, axis) && !form.logarithm) {
        Note(n, absl::StrCat("from_logits=true, so the softmax is applied twice", kOnce));
      }
      return absl::OkStatus();
    }
    if (IsSoftmaxAlong(form, axis)) {
      Note(n, absl::StrCat("computed on the input of softmax '", graph_.node(form.by).name,
                           "', which the loss applies itself"));
      node.inputs[0] = LogitsOf(form);
      if (own) node.attributes.Set(kFromLogits, true);
      return absl::OkStatus();
    }
    // The softmax of logarithms of probabilities is the probabilities.
    if (form.logarithm && form.IsProbability()) return absl::OkStatus();
    const bool probabilities = form.IsDistribution() && form.axis == axis;
    if (!given.has_value() && !probabilities) {
      if (form.IsDistribution()) {
        return Unclear(n, absl::StrCat("probabilities along dimension ", form.axis),
                       absl::StrCat("classes in dimension ", axis));
      }
      if (form.IsProbability()) {
        return Unclear(n,
                       form.function == PredictionForm::kSigmoid
                           ? "a sigmoid's results"
                           : "numbers from 0 to 1 that need not add up to 1",
                       "logits, to which it applies a softmax");
      }
      if (options_.describe_all) Note(n, "taken as logits, to which the loss applies a softmax");
      return absl::OkStatus();
    }
    if (!given.has_value() || !probabilities) Note(n, "taken as probabilities");
    if (own) {
      node.attributes.Set(kFromLogits, false);
    } else {
      node.inputs[0] = LogarithmOf(v);
    }
    return absl::OkStatus();
  }

  absl::Status MatchBinaryLogits(NodeId n, const PredictionForm& form, std::optional<bool> given) {
    Node& node = graph_.mutable_node(n);
    const ValueId v = node.inputs[0];
    const bool sigmoid = form.function == PredictionForm::kSigmoid && !form.logarithm;
    if (given.value_or(false)) {
      if (sigmoid) {
        Note(n, absl::StrCat("from_logits=true, so the sigmoid is applied twice", kOnce));
      }
      return absl::OkStatus();
    }
    if (sigmoid) {
      Note(n, absl::StrCat("computed on the input of sigmoid '", graph_.node(form.by).name,
                           "', which the loss applies itself"));
      node.inputs[0] = LogitsOf(form);
      node.attributes.Set(kFromLogits, true);
      return absl::OkStatus();
    }
    if (form.logarithm && form.IsProbability() && !given.has_value()) {
      return Unclear(n, "logarithms of probabilities", "logits, to which it applies a sigmoid");
    }
    if (given.has_value() || form.IsProbability()) {
      if (!given.has_value() || !form.IsProbability()) Note(n, "taken as probabilities");
      node.attributes.Set(kFromLogits, false);
    } else {
      if (options_.describe_all) Note(n, "taken as logits, to which the loss applies a sigmoid");
      of_loss_[v] = true;
    }
    return absl::OkStatus();
  }

  absl::Status MatchLogProbabilities(NodeId n, const PredictionForm& form,
                                     std::optional<bool> given) {
    constexpr int64_t kClasses = 1;
    Node& node = graph_.mutable_node(n);
    const ValueId v = node.inputs[0];
    const auto log_softmax = [&](ValueId logits) {
      node.inputs[0] = inserter_.Add(absl::StrCat(graph_.value(v).name, ".log_softmax"),
                                     "log_softmax", {{"axis", kClasses}}, {logits});
    };
    if (given.value_or(false)) {
      Note(n, "taken as logits; their log-softmax is computed");
      log_softmax(v);
      return absl::OkStatus();
    }
    if (!given.has_value() && form.logarithm && form.IsProbability()) return absl::OkStatus();
    if (IsSoftmaxAlong(form, kClasses) && !form.logarithm) {
      Note(n, absl::StrCat("computed on the log-softmax of the input of softmax '",
                           graph_.node(form.by).name, "'"));
      log_softmax(LogitsOf(form));
      return absl::OkStatus();
    }
    if (given.has_value() || (form.IsDistribution() && form.axis == kClasses)) {
      Note(n, "taken as probabilities; their logarithm is computed");
      node.inputs[0] = LogarithmOf(v);
      return absl::OkStatus();
    }
    if (form.IsProbability()) {
      return Unclear(n, "numbers from 0 to 1", "logarithms of the classes' probabilities");
    }
    if (options_.describe_all) {
      Note(n, "taken as log-probabilities; if it holds logits, say from_logits=true");
    }
    return absl::OkStatus();
  }

  // The order of classes is that of the logits: softmax and sigmoid need not be computed.
  void MatchScores(NodeId n, const OpDef& def, const PredictionForm& form,
                   std::optional<bool> given) {
    Node& node = graph_.mutable_node(n);
    const bool twice = given.value_or(false);
    if (!twice && IsSoftmaxAlong(form, ClassAxis(def, node.inputs[0]))) {
      node.inputs[0] = LogitsOf(form);
    }
  }

  void MatchThreshold(NodeId n, const PredictionForm& form, std::optional<bool> given) {
    Node& node = graph_.mutable_node(n);
    if (node.attributes.Has("threshold")) return;
    if (form.function == PredictionForm::kSigmoid && !form.logarithm && !given.value_or(false)) {
      node.inputs[0] = LogitsOf(form);
      node.attributes.Set("threshold", 0.0);
    } else if (form.logarithm) {
      node.attributes.Set("threshold", std::log(0.5));
    } else {
      const bool logits = given.value_or(false);
      node.attributes.Set("threshold", logits ? 0.0 : 0.5);
    }
  }

  const OpRegistry& registry_;
  const MatchOptions options_;
  Graph& graph_;
  Graph bound_;
  NodeInserter inserter_;
  std::map<NodeId, bool> given_;     // from_logits by node
  std::map<ValueId, bool> of_loss_;  // what holds for the loss on a tensor, as metrics need it
  std::map<std::pair<ValueId, std::vector<NodeId>>, ValueId> logits_;
  std::map<ValueId, ValueId> logarithms_;
  std::vector<std::string> notes_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> MatchPredictions(const OpRegistry& registry, int64_t batch,
                                                          const MatchOptions& options,
                                                          Graph* graph) {
  return Matcher(registry, options, graph).Run(batch);
}

}  // namespace espalier
