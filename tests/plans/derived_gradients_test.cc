// Gradients of values that a rewrite rule removes, or reads past, are those of the model before it,
// for every rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/cpu/register_all.h"
#include "ops/graph/autodiff.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "ops/probe/expression.h"
#include "ops/rewrite/fuse.h"
#include "ops/rewrite/match.h"
#include "ops/rewrite/proof.h"
#include "server/replay/bypassed_values.h"
#include "server/replay/derived_values.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

const OpRegistry& Operators() {
  static const auto* const operators = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *operators;
}

const KernelRegistry& Kernels() {
  static const auto* const kernels = [] {
    auto* made = new KernelRegistry;
    RegisterCpuKernels(*made);
    return made;
  }();
  return *kernels;
}

// The example of a rule, with a loss that weights each element of each output differently.
Graph WithLoss(Graph graph) {
  ValueId loss = kNoValue;
  const auto outputs = graph.outputs;
  for (const auto& [name, value] : outputs) {
    const auto add = [&](const std::string& op, std::vector<ValueId> inputs) {
      const std::string node = absl::StrCat("loss.", op, ".", name);
      const ValueId y = graph.AddValue({.name = node});
      graph.AddNode({.name = node, .op = op, .inputs = std::move(inputs), .outputs = {y}});
      return y;
    };
    const ValueId weight = graph.AddValue({.name = absl::StrCat("weight.", name),
                                           .type = graph.value(value).type,
                                           .kind = ValueKind::kInput});
    const ValueId sum = add("reduce_sum", {add("multiply", {value, weight})});
    loss = loss == kNoValue ? sum : add("add", {loss, sum});
  }
  graph.outputs.emplace_back("loss", loss);
  const absl::Status bound = BindAndInfer(Operators(), 1, &graph);
  EXPECT_TRUE(bound.ok()) << bound;
  return graph;
}

// A graph with the elements of all its values and gradients in one step.
struct Evaluated {
  explicit Evaluated(const Graph& graph) {
    auto differentiated = Differentiate(Operators(), graph);
    EXPECT_TRUE(differentiated.ok()) << differentiated.status();
    if (!differentiated.ok()) return;
    training = *std::move(differentiated);
    auto bytes = Evaluate(Kernels(), training.graph, /*seed=*/3);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    if (bytes.ok()) elements = *std::move(bytes);
  }

  // A value, or its gradient; nullopt if there is none.
  std::optional<v1::TensorValue> Find(const ProbeTarget& target) const {
    ValueId found = training.graph.FindValue(target.name);
    if (found == kNoValue || training.gradient_of[found] != kNoValue) return std::nullopt;
    if (target.kind == ProbeTarget::kGrad) {
      const auto last =
          std::find(training.gradient_of.rbegin(), training.gradient_of.rend(), found);
      if (last == training.gradient_of.rend()) return std::nullopt;
      found = static_cast<ValueId>(training.gradient_of.rend() - last) - 1;
    }
    const TensorType& type = training.graph.value(found).type;
    v1::TensorValue tensor;
    tensor.set_dtype(ToProto(type.dtype));
    tensor.mutable_dims()->Assign(type.dims.begin(), type.dims.end());
    tensor.set_data(elements[found]);
    return tensor;
  }

  TrainingGraph training;
  std::vector<std::string> elements;
};

std::vector<float> Floats(const v1::TensorValue& tensor) {
  std::vector<float> floats(tensor.data().size() / sizeof(float));
  std::memcpy(floats.data(), tensor.data().data(), tensor.data().size());
  return floats;
}

// Returns how many gradients were compared.
int ExpectGradients(const Graph& original, const Graph& planned) {
  const Evaluated before(original), after(planned);
  const std::set<std::string> bypassed = BypassedValues(original, planned);
  const auto readable = [&](const ProbeTarget& target) {
    return after.Find(target).has_value() &&
           !(target.kind == ProbeTarget::kGrad && bypassed.contains(target.name));
  };
  std::vector<ProbeExpression> probes;
  for (const Value& value : original.values()) {
    const ProbeTarget gradient{ProbeTarget::kGrad, value.name, ""};
    if (value.producer == kNoNode || !before.Find(gradient).has_value()) continue;
    if (!readable(gradient)) probes.push_back({{gradient}, Reduction{Reduction::kFull}});
    // What the programs have needs no recomputation, and is right; also for a sum that is bypassed.
    ProbeTarget there = gradient;
    if (const auto addend = SoleAddend(original, value.name); bypassed.contains(value.name)) {
      if (addend.has_value()) there.name = *addend;
    }
    if (!readable(there) || value.name == "loss") continue;
    const std::vector<float> wanted = Floats(*before.Find(gradient));
    const std::vector<float> found = Floats(*after.Find(there));
    EXPECT_EQ(found.size(), wanted.size()) << value.name;
    for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
      EXPECT_NEAR(found[i], wanted[i], 1e-4 * std::max(1.0f, std::abs(wanted[i]))) << value.name;
    }
  }
  const auto derived = DerivedValues::Make(Operators(), original, readable, probes);
  EXPECT_TRUE(derived.ok()) << derived.status();
  if (!derived.ok()) return 0;
  for (const auto& [probe, why] : derived->lacking()) ADD_FAILURE() << probe << ": " << why;
  std::vector<v1::HistoryRow> rows;
  for (const ProbeExpression& source : derived->sources()) {
    v1::HistoryRow& row = rows.emplace_back();
    row.set_step(5);
    row.set_name(TargetsToString(source));
    row.set_reduction(ToString(source.reduction));
    *row.mutable_value()->mutable_tensor() = *after.Find(source.targets[0]);
  }
  const auto answers = derived->Complete(std::move(rows), 5, /*training=*/true);
  EXPECT_TRUE(answers.ok()) << answers.status();
  if (!answers.ok()) return 0;
  const std::vector<ProbeExpression> asked = derived->probes();
  EXPECT_EQ(answers->size(), asked.size());
  for (size_t p = 0; p < std::min(answers->size(), asked.size()); ++p) {
    const ProbeTarget& target = asked[p].targets[0];
    const std::vector<float> wanted = Floats(*before.Find(target));
    const std::vector<float> found = Floats((*answers)[p].value().tensor());
    float largest = 0;
    for (const float number : wanted) largest = std::max(largest, std::abs(number));
    EXPECT_EQ(found.size(), wanted.size()) << ToString(target);
    for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
      EXPECT_NEAR(found[i], wanted[i], 1e-5 * largest) << ToString(target) << ", element " << i;
    }
  }
  return static_cast<int>(answers->size());
}

TEST(DerivedGradients, AreThoseBeforeEveryRule) {
  auto rules = FusionRules(Operators());
  const auto of_search = SearchRules(Operators());
  ASSERT_TRUE(rules.ok() && of_search.ok()) << rules.status() << of_search.status();
  rules->insert(rules->end(), of_search->begin(), of_search->end());
  std::map<std::string, int> alternatives, compared;  // by rule
  for (const RewriteRule& rule : *rules) {
    SCOPED_TRACE(rule.name);
    // Attention has hundreds of alternatives.
    const std::string base = rule.name.substr(0, rule.name.find('('));
    if (++alternatives[base] > 8 && alternatives[base] % 8 > 0) continue;
    auto example = ExampleGraph(Operators(), rule);
    ASSERT_TRUE(example.ok()) << example.status();
    const Graph original = WithLoss(*std::move(example));
    const std::vector<Match> matches = FindMatches(Operators(), original, rule);
    ASSERT_FALSE(matches.empty());
    const auto planned = Apply(Operators(), original, rule, matches[0]);
    ASSERT_TRUE(planned.ok()) << planned.status();
    compared[base] += ExpectGradients(original, *planned);
    if (HasFailure()) return;
  }
  for (const std::string rule :
       {"layer_norm", "batch_norm_activation", "batch_norm_residual", "residual_layer_norm",
        "attention", "linear_bias", "activation", "gelu_erf", "swiglu", "sum_of_linear"}) {
    EXPECT_GT(compared[rule], 0) << rule << " removes no value";
  }
}

// All rules together, as plans apply them.
TEST(DerivedGradients, AreThoseBeforeAllRules) {
  GraphBuilder b(Operators(), "block");
  const auto weight = [&](const std::string& name, const Dims& dims) {
    return b.Parameter(name, DType::kF32, dims, Initializer{});
  };
  ValueId h = b.Parameter("x", DType::kF32, {3, 8}, Initializer{});
  for (const std::string layer : {"0", "1"}) {
    const auto name = [&](const std::string& of) { return absl::StrCat(of, layer); };
    const ValueId normed =
        b.Op("layer_norm", {h, weight(name("scale"), {8}), weight(name("shift"), {8})}, {},
             name("normed"));
    ValueId f = b.Op("linear", {normed, weight(name("in"), {16, 8})}, {}, name("product"));
    f = b.Op("add", {f, weight(name("bias"), {16})}, {}, name("biased"));
    f = b.Op("relu", {f}, {}, name("act"));
    f = b.Op("linear", {f, weight(name("out"), {8, 16})}, {}, name("back"));
    h = b.Op("add", {h, f}, {}, name("stream"));
  }
  h = b.Op("layer_norm", {h, weight("scale", {8}), weight("shift", {8})}, {}, "normed");
  b.Output("y", h);
  auto built = b.Build();
  ASSERT_TRUE(built.ok()) << built.status();
  ASSERT_TRUE(BindAndInfer(Operators(), 1, &*built).ok());
  const Graph original = WithLoss(*built);
  const auto fused = Fuse(Operators(), original);
  ASSERT_TRUE(fused.ok()) << fused.status();
  // A norm and the sum that it reads are one operator's.
  EXPECT_THAT(BypassedValues(original, *fused), ::testing::Contains("stream0"));
  EXPECT_EQ(SoleAddend(original, "stream0"), "back0");
  EXPECT_EQ(SoleAddend(original, "act0"), std::nullopt);
  EXPECT_GE(ExpectGradients(original, *fused), 6);
}

TEST(DerivedGradients, WhatHasNoneIsListedWithTheReason) {
  GraphBuilder b(Operators(), "frozen");
  const ValueId x = b.Input("x", DType::kF32, {4, 8});
  const auto weight = [&](const std::string& name, bool trained) {
    return b.Parameter(name, DType::kF32, {8, 8}, Initializer{}, trained);
  };
  ValueId h = b.Op("linear", {x, weight("frozen", false)}, {}, "first");
  h = b.Op("linear", {h, weight("trained", true)}, {}, "second");
  const ValueId aside = b.Op("tanh", {h}, {}, "aside");
  h = b.Op("dropout", {h}, {{"rate", 0.5}}, "drop");
  b.Output("seen", aside);
  b.Output("loss", b.Op("reduce_sum", {h}, {{"keepdims", false}}, "loss"));
  auto original = b.Build();
  ASSERT_TRUE(original.ok()) << original.status();
  ASSERT_TRUE(BindAndInfer(Operators(), 4, &*original).ok());
  std::vector<ProbeExpression> probes;
  for (const std::string name : {"first", "aside", "second"}) {
    probes.push_back({{{ProbeTarget::kGrad, name, ""}}, Reduction{Reduction::kNorm}});
  }
  const auto readable = [](const ProbeTarget& target) {
    return target.kind != ProbeTarget::kGrad || target.name == "drop";
  };
  const auto derived = DerivedValues::Make(Operators(), *original, readable, probes);
  ASSERT_TRUE(derived.ok()) << derived.status();
  EXPECT_THAT(derived->probes(), ::testing::IsEmpty());
  ASSERT_EQ(derived->lacking().size(), 3u);
  EXPECT_THAT(std::string(derived->lacking()[0].second.message()),
              HasSubstr("'first' has no gradient"));
  EXPECT_THAT(std::string(derived->lacking()[1].second.message()),
              HasSubstr("'aside' has no gradient"));
  EXPECT_THAT(std::string(derived->lacking()[2].second.message()),
              HasSubstr("nearest to it there is 'grad(drop)'"));
}

}  // namespace
}  // namespace espalier
