#include "ops/rewrite/proof.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/autodiff.h"
#include "ops/rewrite/match.h"

namespace espalier {
namespace {

constexpr int kSeeds = 3;
constexpr size_t kMostText = 1 << 20;
constexpr size_t kMostRules = 2000;

// Random elements of an input, the same in every graph with a value of this name.
std::string FedBytes(const Value& value, int seed) {
  if (!value.constant.empty()) return value.constant;
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(value.name)) + seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::string bytes(value.type.bytes(), '\0');
  for (int64_t i = 0; i < value.type.num_elements(); ++i) {
    const float number = uniform(random);
    if (value.type.dtype == DType::kF32) std::memcpy(&bytes[4 * i], &number, sizeof(number));
    if (value.type.dtype == DType::kBool) bytes[i] = number > 0 ? 1 : 0;
    if (value.type.dtype == DType::kI64) bytes[8 * i] = number > 0 ? 1 : 0;
  }
  return bytes;
}

absl::Status RunNode(const KernelRegistry& kernels, const Graph& graph, const Node& node,
                     std::vector<std::string>* bytes) {
  KernelSpec spec{node.op, node.attributes, {}, {}, false};
  KernelArgs args;
  const auto view = [&](ValueId v) {
    return v == kNoValue ? TensorView{}
                         : TensorView{(*bytes)[v].data(), TensorSpec::Whole(graph.value(v).type)};
  };
  std::vector<TensorView> inputs, outputs;
  for (ValueId v : node.inputs) inputs.push_back(view(v));
  for (ValueId v : node.outputs) outputs.push_back(view(v));
  for (const TensorView& v : inputs) spec.inputs.push_back(v.spec);
  for (const TensorView& v : outputs) spec.outputs.push_back(v.spec);
  args.inputs = inputs;
  args.outputs = outputs;
  std::string error;
  const std::unique_ptr<Kernel> kernel = kernels.Create(spec, &error);
  if (kernel == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("operator '", node.name, "': ", error));
  }
  const size_t size = (kernel->workspace_bytes() + 63) / 64 * 64 + 64;
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, size), std::free);
  args.workspace = workspace.get();
  const KernelStatus status = kernel->Run(args);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("operator '", node.name, "': ", status.error));
}

// Adds output "loss": a sum over all outputs with a different weight for each element.
absl::Status AddLoss(const OpRegistry& registry, Graph* graph) {
  ValueId loss = kNoValue;
  const auto outputs = graph->outputs;
  for (const auto& [name, value] : outputs) {
    const auto add = [&](const std::string& op, std::vector<ValueId> inputs) {
      const std::string node = absl::StrCat("loss.", op, ".", name);
      const ValueId y = graph->AddValue({.name = node});
      graph->AddNode({.name = node, .op = op, .inputs = std::move(inputs), .outputs = {y}});
      return y;
    };
    const ValueId weight = graph->AddValue({.name = absl::StrCat("loss.weight.", name),
                                            .type = graph->value(value).type,
                                            .kind = ValueKind::kInput});
    const ValueId sum = add("reduce_sum", {add("multiply", {value, weight})});
    loss = loss == kNoValue ? sum : add("add", {loss, sum});
  }
  graph->outputs.emplace_back("loss", loss);
  return BindAndInfer(registry, 1, graph);
}

absl::Status Differs(const std::string& name, absl::string_view how) {
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' ", how));
}

absl::Status CheckNumbers(const std::string& name, const std::vector<float>& expected,
                          const std::vector<float>& found, double tolerance) {
  if (expected.size() != found.size()) return Differs(name, "has another size afterwards");
  // The terms of the loss may cancel out.
  double largest = name == "loss" ? 1 : 0;
  for (float number : expected) largest = std::max(largest, std::abs(static_cast<double>(number)));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double before = expected[i], after = found[i];
    if (!std::isfinite(before) || !std::isfinite(after)) {
      return Differs(name, absl::StrCat("is not finite at element ", i, ": ", before, " before, ",
                                        after, " afterwards"));
    }
    if (std::abs(before - after) > tolerance * largest) {
      return Differs(name, absl::StrCat("differs at element ", i, ": ", before, " before, ", after,
                                        " afterwards, where the largest is ", largest));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Evaluate(const KernelRegistry& kernels, const Graph& graph,
                                                  int seed) {
  std::vector<std::string> bytes;
  for (const Value& value : graph.values()) {
    bytes.push_back(value.kind == ValueKind::kComputed ? std::string(value.type.bytes(), 0x7f)
                                                       : FedBytes(value, seed));
  }
  for (const Node& node : graph.nodes()) {
    if (absl::Status s = RunNode(kernels, graph, node, &bytes); !s.ok()) return s;
  }
  return bytes;
}

absl::StatusOr<std::map<std::string, std::vector<float>>> OutputsAndGradients(
    const OpRegistry& registry, const KernelRegistry& kernels, const Graph& graph, int seed) {
  Graph with_loss = graph;
  if (absl::Status s = AddLoss(registry, &with_loss); !s.ok()) return s;
  absl::StatusOr<TrainingGraph> training = Differentiate(registry, with_loss);
  if (!training.ok()) return training.status();
  absl::StatusOr<std::vector<std::string>> bytes = Evaluate(kernels, training->graph, seed);
  if (!bytes.ok()) return bytes.status();
  std::map<std::string, std::vector<float>> results;
  const auto keep = [&](const std::string& name, ValueId v) {
    if (training->graph.value(v).type.dtype != DType::kF32) return;
    std::vector<float>& numbers = results[name];
    numbers.resize((*bytes)[v].size() / sizeof(float));
    std::memcpy(numbers.data(), (*bytes)[v].data(), (*bytes)[v].size());
  };
  for (const auto& [name, value] : with_loss.outputs) keep(name, value);
  for (const auto& [parameter, gradient] : training->gradients) {
    keep(absl::StrCat("gradient of ", with_loss.value(parameter).name), gradient);
  }
  return results;
}

absl::Status CheckSame(const OpRegistry& registry, const KernelRegistry& kernels,
                       const Graph& before, const Graph& after, int seed, double tolerance) {
  const auto expected = OutputsAndGradients(registry, kernels, before, seed);
  if (!expected.ok()) return expected.status();
  const auto found = OutputsAndGradients(registry, kernels, after, seed);
  if (!found.ok()) return found.status();
  for (const auto& [name, numbers] : *expected) {
    const auto other = found->find(name);
    if (other == found->end()) return Differs(name, "is missing afterwards");
    absl::Status status = CheckNumbers(name, numbers, other->second, tolerance);
    if (!status.ok()) return status;
  }
  for (const auto& [name, numbers] : *found) {
    if (expected->count(name) == 0) return Differs(name, "is there only afterwards");
  }
  return absl::OkStatus();
}

absl::Status ProveRule(const OpRegistry& registry, const KernelRegistry& kernels,
                       const RewriteRule& rule) {
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("rule '", rule.name, "': ", what));
  };
  const bool any_optional = std::any_of(rule.values.begin(), rule.values.end(),
                                        [](const RuleValue& value) { return value.optional; });
  for (bool with_optional : {true, false}) {
    if (!with_optional && !any_optional) continue;
    const absl::StatusOr<Graph> before = ExampleGraph(registry, rule, with_optional);
    if (!before.ok()) return before.status();
    const std::vector<Match> matches = FindMatches(registry, *before, rule);
    if (matches.empty()) {
      return error("it does not fit its own example; expected an example that has what it asks");
    }
    for (const Match& match : matches) {
      const absl::StatusOr<Graph> after = Apply(registry, *before, rule, match);
      if (!after.ok()) return after.status();
      for (int seed = 0; seed < kSeeds; ++seed) {
        const absl::Status same = CheckSame(registry, kernels, *before, *after, seed);
        if (same.ok()) continue;
        return error(absl::StrCat("its two sides are not the same: ", same.message()));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RewriteRule>> ReadProvenRules(const OpRegistry& registry,
                                                         const KernelRegistry& kernels,
                                                         const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (text[first] == '{' || text[first] == '[')) {
    return absl::InvalidArgumentError(
        "substitutions: the text is JSON, as FlexFlow writes them, which names no types to test a "
        "rule with; expected rules in Espalier's form, 'rule NAME ... => ...' with an example");
  }
  if (text.size() > kMostText) {
    return absl::InvalidArgumentError(
        absl::StrCat("substitutions: ", text.size(), " bytes; at most ", kMostText, " are read"));
  }
  absl::StatusOr<std::vector<RewriteRule>> rules = ParseRules(registry, text);
  if (!rules.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("substitutions: ", rules.status().message()));
  }
  if (rules->size() > kMostRules) {
    return absl::InvalidArgumentError(absl::StrCat(
        "substitutions: ", rules->size(), " rules; at most ", kMostRules, " are accepted"));
  }
  for (const RewriteRule& rule : *rules) {
    if (absl::Status s = ProveRule(registry, kernels, rule); !s.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("substitutions: ", s.message()));
    }
  }
  return rules;
}

}  // namespace espalier
