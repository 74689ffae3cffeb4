#include "models/lora.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr char kPrefix[] = "base_model.model.";
constexpr char kA[] = ".lora_A.weight", kB[] = ".lora_B.weight";
// PEFT also saves the adapted output layer itself. Training did not change it, so the model's copy
// is used.
constexpr char kBase[] = ".base_layer.weight";
constexpr char kWeight[] = ".weight";
// Ranks are zero-padded to a multiple of every kernel's vector width.
constexpr int64_t kRankMultiple = 16;

// A linear layer and its module.
struct AdaptedLayer {
  std::string module;                             // the module's name in the model's files
  int64_t out = 0, in = 0;                        // of the module
  std::vector<std::pair<int64_t, int64_t>> rows;  // rows of the module that form the layer
};

// The two tensors of one adapter for one module; empty if absent.
struct Pair {
  std::string a, b;
  std::string base;  // a copy of the module's own matrix; empty: none
};

absl::Status AdapterError(const LoraAdapter& adapter, const std::string& tensor,
                          const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("adapter '", adapter.name, "': tensor '", tensor, "' ", what));
}

// The tensors by module, checked to be pairs.
absl::StatusOr<std::map<std::string, Pair>> PairsOf(const LoraAdapter& adapter) {
  std::map<std::string, Pair> pairs;
  for (const auto& [name, dims] : adapter.tensors) {
    absl::string_view module = name;
    absl::ConsumePrefix(&module, kPrefix);
    if (absl::ConsumeSuffix(&module, kA)) {
      pairs[std::string(module)].a = name;
    } else if (absl::ConsumeSuffix(&module, kB)) {
      pairs[std::string(module)].b = name;
    } else if (absl::ConsumeSuffix(&module, kBase)) {
      pairs[std::string(module)].base = name;
    } else {
      return absl::UnimplementedError(
          absl::StrCat("adapter '", adapter.name, "': tensor '", name,
                       "'; accepted are the matrices of LoRA alone, whose names end in '", kA,
                       "' and '", kB, "': no embeddings, biases, magnitudes or whole modules"));
    }
  }
  if (pairs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("adapter '", adapter.name, "' has no tensors"));
  }
  for (const auto& [module, pair] : pairs) {
    if (!pair.a.empty() && !pair.b.empty()) continue;
    const std::string& lone = pair.a.empty() ? (pair.b.empty() ? pair.base : pair.b) : pair.a;
    return AdapterError(adapter, lone,
                        absl::StrCat("has no partner '", module, pair.a.empty() ? kA : kB, "'"));
  }
  return pairs;
}

// All modules with parameters, by their names in the model's files.
std::set<std::string> ModulesOf(const Graph& graph, const WeightMap& weights) {
  std::set<std::string> modules;
  const auto add = [&](const std::string& tensor) {
    modules.insert(tensor.substr(0, tensor.rfind('.')));
  };
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kParameter) continue;
    const auto source = weights.sources.find(value.name);
    if (source == weights.sources.end() || source->second.pieces.empty()) {
      add(value.name);
    } else {
      for (const WeightSlice& piece : source->second.pieces) add(piece.tensor);
    }
  }
  for (const Node& node : graph.nodes()) {
    if (node.name == "lm_head") modules.insert(node.name);  // see FindLayer
  }
  return modules;
}

// As in PEFT, a target may name modules of other families; if it names one of this family, the
// adapter must have tensors for it.
absl::Status CheckTargets(const LoraAdapter& adapter, const std::map<std::string, Pair>& pairs,
                          const std::set<std::string>& modules) {
  const auto is = [](const std::string& module, const std::string& target) {
    return module == target || absl::EndsWith(module, "." + target);
  };
  std::set<std::string> found;
  for (const auto& [module, pair] : pairs) {
    bool meant = adapter.config.targets.empty();
    for (const std::string& target : adapter.config.targets) {
      if (!is(module, target)) continue;
      meant = true;
      found.insert(target);
    }
    if (!meant)
      return AdapterError(adapter, pair.a, "is for none of adapter_config.json's target_modules");
  }
  for (const std::string& target : adapter.config.targets) {
    if (found.count(target) > 0) continue;
    const bool there = std::any_of(modules.begin(), modules.end(),
                                   [&](const std::string& module) { return is(module, target); });
    if (!there) continue;
    return absl::InvalidArgumentError(absl::StrCat("adapter '", adapter.name,
                                                   "': adapter_config.json: target_modules names '",
                                                   target, "', of which there are no tensors"));
  }
  return absl::OkStatus();
}

absl::Status CheckPair(const LoraAdapter& adapter, const Pair& pair, const AdaptedLayer& layer) {
  const int64_t rank = adapter.config.rank;
  const std::pair<const std::string*, Dims> expected[] = {{&pair.a, {rank, layer.in}},
                                                          {&pair.b, {layer.out, rank}},
                                                          {&pair.base, {layer.out, layer.in}}};
  for (const auto& [tensor, dims] : expected) {
    if (tensor->empty()) continue;
    const Dims& found = adapter.tensors.at(*tensor);
    if (found == dims) continue;
    return AdapterError(
        adapter, *tensor,
        absl::StrCat("has shape ", ToString(found), ", expected ", ToString(dims), ": the rank is ",
                     rank, ", the layer is [", layer.out, ", ", layer.in, "]"));
  }
  return absl::OkStatus();
}

// Null unless the node is a linear layer whose matrix is a single tensor of the model's files.
bool FindLayer(const Graph& graph, const WeightMap& weights, const Node& node,
               AdaptedLayer* layer) {
  if (node.op != "linear" || node.forward != kNoNode) return false;
  const Value& weight = graph.value(node.inputs[1]);
  if (weight.kind != ValueKind::kParameter) return false;
  const Dims& dims = weight.type.dims;
  *layer = {weight.name, dims[0], dims[1], {{0, dims[0]}}};
  const auto source = weights.sources.find(weight.name);
  if (source != weights.sources.end() && !source->second.pieces.empty()) {
    const WeightSlice& first = source->second.pieces[0];
    layer->module = first.tensor;
    layer->out = first.dims[first.transposed ? 1 : 0];
    layer->rows.clear();
    for (const WeightSlice& piece : source->second.pieces) {
      if (piece.tensor != first.tensor) return false;
      layer->rows.emplace_back(piece.begin, piece.end);
    }
  }
  // Tied to the embedding table: the layer still has its own name. In multimodal models the older
  // name is that of the text part.
  if (node.name == "lm_head") {
    const bool text_part = absl::StartsWith(layer->module, kTextPart);
    layer->module = absl::StrCat(text_part ? kTextPart : "", node.name, kWeight);
  }
  layer->module = std::string(absl::StripSuffix(layer->module, kWeight));
  return true;
}

class LoraBuilder {
 public:
  LoraBuilder(const OpRegistry& registry, const ServingModel& model,
              absl::Span<const LoraAdapter> adapters)
      : registry_(registry), given_(model.graph), weights_(model.weights), adapters_(adapters) {}

  absl::StatusOr<LoraModel> Make() {
    int64_t rank = 1;
    const std::set<std::string> modules = ModulesOf(given_, weights_);
    for (const LoraAdapter& adapter : adapters_) {
      absl::StatusOr<std::map<std::string, Pair>> pairs = PairsOf(adapter);
      if (!pairs.ok()) return pairs.status();
      if (absl::Status s = CheckTargets(adapter, *pairs, modules); !s.ok()) return s;
      pairs_.push_back(*std::move(pairs));
      rank = std::max(rank, adapter.config.rank);
    }
    used_.resize(adapters_.size());
    rank_ = (rank + kRankMultiple - 1) / kRankMultiple * kRankMultiple;
    if (absl::Status s = Copy(); !s.ok()) return s;
    for (size_t i = 0; i < adapters_.size(); ++i) {
      for (const auto& [module, pair] : pairs_[i]) {
        if (used_[i].count(module) > 0) continue;
        return AdapterError(
            adapters_[i], pair.a,
            "is for no linear layer of the model; mixtures' experts and embeddings cannot "
            "be adapted");
      }
    }
    if (absl::Status s = BindAndInfer(registry_, 1, &out_.model.graph); !s.ok()) return s;
    out_.model.weights = weights_;
    for (const auto& [name, matrices] : out_.parameters) out_.model.weights.sources[name] = {};
    return std::move(out_);
  }

 private:
  Graph& graph() { return out_.model.graph; }

  // Adds the adapter nodes to the graph.
  absl::Status Copy() {
    Graph& graph = out_.model.graph;
    graph.name = given_.name;
    graph.metadata = given_.metadata;
    graph.metadata["dynamic.row_adapter"] = "rows";
    moved_.assign(given_.values().size(), kNoValue);
    for (size_t v = 0; v < given_.values().size(); ++v) {
      if (given_.values()[v].kind != ValueKind::kComputed)
        moved_[v] = graph.AddValue(given_.values()[v]);
    }
    Value adapter;
    adapter.name = "row_adapter";
    adapter.kind = ValueKind::kInput;
    adapter.type = given_.value(given_.FindValue("tokens")).type;
    row_adapter_ = graph.AddValue(std::move(adapter));
    for (const Node& old : given_.nodes()) {
      Node node = old;
      for (ValueId& input : node.inputs) {
        if (input != kNoValue) input = moved_[static_cast<size_t>(input)];
      }
      const ValueId x = node.inputs.empty() ? kNoValue : node.inputs[0];
      for (ValueId& output : node.outputs) {
        if (output == kNoValue) continue;
        const size_t at = static_cast<size_t>(output);
        output = graph.AddValue(given_.value(output));
        moved_[at] = output;
      }
      graph.AddNode(std::move(node));
      AdaptedLayer layer;
      if (!FindLayer(given_, weights_, old, &layer)) continue;
      absl::StatusOr<bool> adapted = Adapts(layer);
      if (!adapted.ok()) return adapted.status();
      if (*adapted) Adapt(old, layer, x);
    }
    for (const auto& [name, value] : given_.outputs) {
      graph.outputs.emplace_back(name, moved_[static_cast<size_t>(value)]);
    }
    return absl::OkStatus();
  }

  // The tensors of adapter i for a layer; null if it has none.
  const Pair* Find(size_t i, const AdaptedLayer& layer) {
    for (const std::string& name : TensorNames(layer.module)) {
      const auto found = pairs_[i].find(name);
      if (found == pairs_[i].end()) continue;
      used_[i].insert(name);
      return &found->second;
    }
    return nullptr;
  }

  absl::StatusOr<bool> Adapts(const AdaptedLayer& layer) {
    bool any = false;
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const Pair* const pair = Find(i, layer);
      if (pair == nullptr) continue;
      any = true;
      if (absl::Status s = CheckPair(adapters_[i], *pair, layer); !s.ok()) return s;
    }
    return any;
  }

  // y becomes y + lora_linear(x).
  void Adapt(const Node& old, const AdaptedLayer& layer, ValueId x) {
    const int64_t out = given_.value(old.inputs[1]).type.dims[0];
    std::vector<AdapterMatrix> a(adapters_.size()), b(adapters_.size());
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const Pair* const pair = Find(i, layer);
      if (pair == nullptr) continue;
      a[i] = {pair->a, {{0, adapters_[i].config.rank}}, 1};
      b[i] = {pair->b, layer.rows, adapters_[i].config.scale};
    }
    const auto adapters = static_cast<int64_t>(adapters_.size());
    // Layers that are parts of one module share A.
    const ValueId va =
        Parameter(layer.module + ".lora_a", {adapters, rank_, layer.in}, std::move(a));
    const ValueId vb = Parameter(old.name + ".lora_b", {adapters, out, rank_}, std::move(b));
    const ValueId delta = Op("lora_linear", old.name + ".lora",
                             {x, va, vb, old.name == "lm_head" ? Gathered() : row_adapter_});
    ValueId& y = moved_[static_cast<size_t>(old.outputs[0])];
    y = Op("add", old.name + ".adapted", {y, delta});
  }

  ValueId Parameter(const std::string& name, Dims dims, std::vector<AdapterMatrix> matrices) {
    if (const ValueId known = graph().FindValue(name); known != kNoValue) return known;
    Value value;
    value.name = name;
    value.kind = ValueKind::kParameter;
    value.trainable = false;
    value.type = {DType::kF32, std::move(dims)};
    out_.parameters[name] = std::move(matrices);
    return graph().AddValue(std::move(value));
  }

  // The adapters of the rows in logit_rows.
  ValueId Gathered() {
    return Op("gather", "row_adapter.logits", {row_adapter_, graph().FindValue("logit_rows")},
              {{"axis", int64_t{0}}});
  }

  ValueId Op(const std::string& op, const std::string& name, std::vector<ValueId> inputs,
             Attributes attributes = {}) {
    Value value;
    value.name = name;
    const ValueId y = graph().AddValue(std::move(value));
    Node node;
    node.name = name;
    node.op = op;
    node.attributes = std::move(attributes);
    node.inputs = std::move(inputs);
    node.outputs = {y};
    graph().AddNode(std::move(node));
    return y;
  }

  const OpRegistry& registry_;
  const Graph& given_;
  const WeightMap& weights_;
  const absl::Span<const LoraAdapter> adapters_;
  std::vector<std::map<std::string, Pair>> pairs_;  // by adapter, module
  std::vector<std::set<std::string>> used_;         // modules, by adapter
  int64_t rank_ = 0;
  std::vector<ValueId> moved_;
  ValueId row_adapter_ = kNoValue;
  LoraModel out_;
};

}  // namespace

absl::StatusOr<LoraModel> AddLoraAdapters(const OpRegistry& registry, ServingModel model,
                                          absl::Span<const LoraAdapter> adapters) {
  return LoraBuilder(registry, model, adapters).Make();
}

}  // namespace espalier
