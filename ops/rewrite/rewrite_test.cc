#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ops/graph/builder.h"
#include "ops/rewrite/evaluate_for_test.h"
#include "ops/rewrite/fuse.h"
#include "ops/rewrite/match.h"
#include "ops/rewrite/rule.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<RewriteRule> Rules(const std::string& text) {
  absl::StatusOr<std::vector<RewriteRule>> rules = ParseRules(Operators(), text);
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? *rules : std::vector<RewriteRule>{};
}

std::vector<RewriteRule> ForSearch() {
  absl::StatusOr<std::vector<RewriteRule>> rules = SearchRules(Operators());
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? *rules : std::vector<RewriteRule>{};
}

RewriteRule ForSearch(const std::string& name) {
  for (const RewriteRule& rule : ForSearch()) {
    if (rule.name == name) return rule;
  }
  ADD_FAILURE() << "no rule " << name;
  return {};
}

std::vector<RewriteRule> BuiltIn() {
  absl::StatusOr<std::vector<RewriteRule>> rules = FusionRules(Operators());
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? *rules : std::vector<RewriteRule>{};
}

RewriteRule BuiltIn(const std::string& name) {
  for (const RewriteRule& rule : BuiltIn()) {
    if (rule.name == name) return rule;
  }
  ADD_FAILURE() << "no rule " << name;
  return {};
}

Graph Bound(GraphBuilder* builder) {
  absl::StatusOr<Graph> graph = builder->Build();
  EXPECT_TRUE(graph.ok()) << graph.status();
  const absl::Status status = BindAndInfer(Operators(), 2, &*graph);
  EXPECT_TRUE(status.ok()) << status;
  return *graph;
}

// The graph as text: "y = relu(x)" and so on.
std::string Text(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes()) {
    absl::StrAppend(&text, node.name, ":");
    for (ValueId v : node.outputs) absl::StrAppend(&text, " ", graph.value(v).name);
    absl::StrAppend(&text, " = ", node.op, "(");
    for (ValueId v : node.inputs)
      absl::StrAppend(&text, v == kNoValue ? "_" : graph.value(v).name, " ");
    absl::StrAppend(&text, ")\n");
  }
  for (const auto& [name, value] : graph.outputs) {
    absl::StrAppend(&text, name, " = ", graph.value(value).name, " ",
                    ToString(graph.value(value).type), "\n");
  }
  return text;
}

std::vector<std::string> Ops(const Graph& graph) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes()) ops.push_back(node.op);
  return ops;
}

Graph Fused(const Graph& graph, bool with_choices = false) {
  absl::StatusOr<Graph> fused = Fuse(Operators(), graph, nullptr, with_choices);
  EXPECT_TRUE(fused.ok()) << fused.status();
  return fused.ok() ? *fused : Graph();
}

// Every operand is computed before its node, and every type is the inferred one.
void ExpectSound(const Graph& graph) {
  std::vector<bool> there;
  for (const Value& value : graph.values()) there.push_back(value.kind != ValueKind::kComputed);
  std::set<std::string> names;
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
    const Node& node = graph.node(n);
    EXPECT_TRUE(names.insert(node.name).second) << node.name;
    for (ValueId v : node.inputs) EXPECT_TRUE(v == kNoValue || there[v]) << node.name;
    NodeTypes types = graph.TypesOf(n);
    const std::vector<TensorType> outputs = types.outputs;
    ASSERT_TRUE(InferNode(*Operators().Find(node.op), &types).ok()) << node.name;
    EXPECT_EQ(types.outputs, outputs) << node.name;
    EXPECT_EQ(types.attributes, node.attributes) << node.name;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      EXPECT_EQ(graph.value(node.outputs[k]).producer, n);
      EXPECT_EQ(graph.value(node.outputs[k]).producer_output, static_cast<int>(k));
      there[node.outputs[k]] = true;
    }
  }
}

TEST(RewriteTest, EveryRulePassesItsExample) {
  std::vector<RewriteRule> rules = BuiltIn();
  for (RewriteRule& rule : ForSearch()) rules.push_back(std::move(rule));
  for (const RewriteRule& rule : rules) {
    SCOPED_TRACE(rule.name);
    EXPECT_NE(rule.doc, "");
    const bool any_optional = std::any_of(rule.values.begin(), rule.values.end(),
                                          [](const RuleValue& value) { return value.optional; });
    for (bool with_optional : {true, false}) {
      if (!with_optional && !any_optional) continue;
      absl::StatusOr<Graph> graph = ExampleGraph(Operators(), rule, with_optional);
      ASSERT_TRUE(graph.ok()) << graph.status();
      const std::vector<Match> matches = FindMatches(Operators(), *graph, rule);
      ASSERT_EQ(matches.size(), 1u);
      absl::StatusOr<Graph> after = Apply(Operators(), *graph, rule, matches[0]);
      ASSERT_TRUE(after.ok()) << after.status();
      ExpectSound(*after);
      for (const auto& [name, value] : graph->outputs) {
        EXPECT_EQ(after->value(after->FindOutput(name)).name, name);
      }
      EXPECT_NE(Text(*after), Text(*graph));
    }
    ASSERT_EQ(ProveRule(Operators(), Kernels(), rule), absl::OkStatus());
  }
}

// Each set of siblings is found once, whichever comes first.
TEST(RewriteTest, SiblingsMatchBySharedOperands) {
  GraphBuilder builder(Operators(), "graph");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 8});
  const ValueId z = builder.Input("z", DType::kF32, {-1, 8});
  std::vector<ValueId> results;
  for (int i = 0; i < 4; ++i) {
    const std::string name = absl::StrCat("y", i);
    const ValueId w = builder.Parameter("w" + name, DType::kF32, {3 + i, 8}, {});
    builder.Output(name, builder.Op("linear", {i == 2 ? z : x, w}, {}, name));
  }
  const Graph before = Bound(&builder);
  const auto names = [&](const RewriteRule& rule) {
    std::set<std::string> sets;
    for (const Match& match : FindMatches(Operators(), before, rule)) {
      std::string set;
      for (NodeId n : match.nodes) absl::StrAppend(&set, before.node(n).name, " ");
      EXPECT_TRUE(sets.insert(set).second) << set;
      absl::StatusOr<Graph> after = Apply(Operators(), before, rule, match);
      EXPECT_TRUE(after.ok()) << after.status();
      if (!after.ok()) continue;
      ExpectSound(*after);
      ExpectSame(before, *after, 1);
    }
    return sets;
  };
  EXPECT_THAT(names(ForSearch("merge_linear(without)")),
              ::testing::ElementsAre("y0 y1 ", "y0 y3 ", "y1 y3 "));
  EXPECT_THAT(names(ForSearch("merge_linear_3(without)")), ::testing::ElementsAre("y0 y1 y3 "));
}

// y1 needs y0, so one operator cannot compute both.
TEST(RewriteTest, DependentSiblingsDoNotMatch) {
  GraphBuilder builder(Operators(), "graph");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 8});
  const ValueId v = builder.Parameter("v", DType::kF32, {8, 8}, {});
  const ValueId y0 = builder.Op("linear", {x, v}, {}, "y0");
  const ValueId w = builder.Op("reshape", {y0}, {{"shape", std::vector<int64_t>{2, 8}}}, "w");
  builder.Output("y1", builder.Op("linear", {x, w}, {}, "y1"));
  builder.Output("y0", y0);
  const Graph graph = Bound(&builder);
  EXPECT_TRUE(FindMatches(Operators(), graph, ForSearch("merge_linear(without)")).empty());
}

TEST(ProofTest, UserRulesMustPassTheirExample) {
  const auto read = [](const std::string& text) {
    return ReadProvenRules(Operators(), Kernels(), text).status();
  };
  constexpr char kDouble[] = R"(
rule twice
  choice "for fun"
  y = add(x, x)
  =>
  y = multiply_scalar(x) {value: 2}
  example x: f32[3, 5]
)";
  EXPECT_EQ(read(kDouble), absl::OkStatus());
  const std::string wrong = absl::StrReplaceAll(kDouble, {{"value: 2", "value: 2.01"}});
  EXPECT_THAT(std::string(read(wrong).message()),
              AllOf(HasSubstr("rule 'twice'"), HasSubstr("its two sides are not the same"),
                    HasSubstr("differs at element 0")));
  EXPECT_THAT(std::string(read("  [{\"rule\": []}]").message()), HasSubstr("JSON"));
  EXPECT_THAT(std::string(read("rule a\n  y = nothing(x)\n  =>\n").message()),
              AllOf(HasSubstr("substitutions: line 2"), HasSubstr("nothing")));
}

// linear, a bias and a relu.
struct Layer {
  GraphBuilder builder{Operators(), "layer"};
  ValueId x = builder.Input("x", DType::kF32, {-1, 8});
  ValueId w = builder.Parameter("w", DType::kF32, {5, 8}, {});
  ValueId b = builder.Parameter("b", DType::kF32, {5}, {});
  ValueId t = builder.Op("linear", {x, w}, {}, "t");
  ValueId s = builder.Op("add", {b, t}, {}, "s");
  ValueId y = builder.Op("relu", {s}, {}, "y");
};

TEST(RewriteTest, FusedNodeKeepsNameOfResult) {
  Layer layer;
  layer.builder.Output("result", layer.y);
  const Graph before = Bound(&layer.builder), after = Fused(before);
  EXPECT_EQ(Text(after), "y: y = linear(x w b )\nresult = y f32[2, 5]\n");
  EXPECT_EQ(after.node(0).attributes.String("activation"), "relu");
  EXPECT_NE(after.FindValue("x"), kNoValue);
  ExpectSame(before, after, 1);
}

TEST(RewriteTest, ValueThatIsReadOutsideBlocksTheMatch) {
  Layer layer;
  layer.builder.Output("result", layer.y);
  layer.builder.Output("other", layer.builder.Op("tanh", {layer.s}, {}, "z"));
  EXPECT_THAT(Ops(Fused(Bound(&layer.builder))), ::testing::ElementsAre("linear", "relu", "tanh"));
}

TEST(RewriteTest, NamedOutputBlocksTheMatch) {
  Layer layer;
  layer.builder.Output("result", layer.y);
  layer.builder.Output("before", layer.t);
  EXPECT_THAT(Ops(Fused(Bound(&layer.builder))), ::testing::ElementsAre("linear", "add", "relu"));
}

TEST(RewriteTest, OtherAttributesAxesNumbersAndShapesDoNotMatch) {
  const struct {
    const char* rule;
    const char* node;
    const char* attribute;
    AttributeValue value;
  } kCases[] = {
      {"layer_norm(one, sqrt)", "m", "axes", std::vector<int64_t>{1}},
      {"layer_norm(one, sqrt)", "v", "axes", std::vector<int64_t>{1}},
      {"gelu_erf(divide, last)", "r", "value", 1.5},
      {"gelu_tanh(cube, first)", "c", "value", 0.0448},
      {"activation(linear, relu)", "t", "activation", std::string("tanh")},
      {"activation(linear, gelu)", "y", "approximate", std::string("tanh")},
      {"attention(once, divided, none)", "p", "axis", int64_t{2}},
      {"attention(once, divided, none)", "s", "value", -2.0},
      {"attention(once, one, none)", "s", "transpose_a", true},
      {"residual_layer_norm", "y", "epsilon", -1.0},
  };
  for (const auto& wrong : kCases) {
    SCOPED_TRACE(absl::StrCat(wrong.rule, " ", wrong.node, ".", wrong.attribute));
    const RewriteRule rule = BuiltIn(wrong.rule);
    absl::StatusOr<Graph> graph = ExampleGraph(Operators(), rule);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_EQ(FindMatches(Operators(), *graph, rule).size(), 1u);
    const NodeId node = graph->value(graph->FindValue(wrong.node)).producer;
    graph->mutable_node(node).attributes.Set(wrong.attribute, wrong.value);
    EXPECT_TRUE(FindMatches(Operators(), *graph, rule).empty());
  }
}

TEST(RewriteTest, BiasOfAnotherShapeIsNoBias) {
  for (const Dims& dims : {Dims{1}, Dims{2, 5}, Dims{3, 1, 5}}) {
    GraphBuilder builder(Operators(), "graph");
    const ValueId x = builder.Input("x", DType::kF32, {-1, 8});
    const ValueId w = builder.Parameter("w", DType::kF32, {5, 8}, {});
    const ValueId b = builder.Parameter("b", DType::kF32, dims, {});
    builder.Output("y", builder.Op("add", {builder.Op("linear", {x, w}), b}));
    EXPECT_EQ(Fused(Bound(&builder)).nodes().size(), 2u) << ToString(dims);
  }
}

TEST(RewriteTest, TrainedMaskKeepsItsGradient) {
  const RewriteRule rule = BuiltIn("attention(once, divided, rows)");
  absl::StatusOr<Graph> graph = ExampleGraph(Operators(), rule);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(FindMatches(Operators(), *graph, rule).size(), 1u);
  graph->mutable_value(graph->FindValue("m")).kind = ValueKind::kParameter;
  EXPECT_TRUE(FindMatches(Operators(), *graph, rule).empty());
  graph->mutable_value(graph->FindValue("m")).trainable = false;
  EXPECT_EQ(FindMatches(Operators(), *graph, rule).size(), 1u);
}

TEST(RewriteTest, MaskWithOneMoreHiddenElementIsNotCausal) {
  const RewriteRule rule = BuiltIn("attention(once, divided, causal)");
  absl::StatusOr<Graph> graph = ExampleGraph(Operators(), rule);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(FindMatches(Operators(), *graph, rule).size(), 1u);
  std::string& mask = graph->mutable_value(graph->FindValue("m")).constant;
  mask.replace(0, 4, mask.substr(4, 4));
  EXPECT_TRUE(FindMatches(Operators(), *graph, rule).empty());
  EXPECT_EQ(FindMatches(Operators(), *graph, BuiltIn("attention(once, divided, rows)")).size(), 1u);
}

// Such a mask is one row for all queries, not the rows below the diagonal.
TEST(RewriteTest, MaskThatIsBroadcastToTheScoresIsNotCausal) {
  const auto matches = [](const std::string& variant, DType type, const Dims& dims, bool first) {
    const RewriteRule rule = BuiltIn(absl::StrCat("attention(once, divided, ", variant, ")"));
    absl::StatusOr<Graph> graph = ExampleGraph(Operators(), rule);
    EXPECT_TRUE(graph.ok()) << graph.status();
    Value& mask = graph->mutable_value(graph->FindValue("m"));
    mask.type = {type, dims};
    const int64_t elements = mask.type.num_elements();
    if (type == DType::kBool) {
      mask.constant = std::string(elements, '\1');  // hides nothing
    } else {
      std::vector<float> values(elements, first ? -1e9f : 0.0f);
      if (first) values[0] = 0;  // shows key 0 alone
      mask.constant.assign(reinterpret_cast<const char*>(values.data()), 4 * elements);
    }
    const absl::Status bound = BindAndInfer(Operators(), 2, &*graph);
    EXPECT_TRUE(bound.ok()) << bound;
    return FindMatches(Operators(), *graph, rule).size();
  };
  EXPECT_EQ(matches("causal", DType::kF32, {1, 1, 4, 1}, false), 0u);
  EXPECT_EQ(matches("causal", DType::kF32, {1, 5}, true), 0u);
  EXPECT_EQ(matches("causal_where", DType::kBool, {1, 1, 4, 1}, false), 0u);
}

// x -> x + f(norm(x)), `layers` times, as exporters write it, with a loss.
Graph Transformer(int layers) {
  GraphBuilder b(Operators(), "transformer");
  const auto scalar = [&](const std::string& name, float number) {
    return b.Constant(name, DType::kF32, {}, std::string(reinterpret_cast<char*>(&number), 4));
  };
  const Attributes last = {{"axes", std::vector<int64_t>{1}}, {"keepdims", true}};
  ValueId x = b.Input("x", DType::kF32, {-1, 8});
  for (int i = 0; i < layers; ++i) {
    const auto name = [&](const char* what) { return absl::StrCat(i, ".", what); };
    const auto parameter = [&](const char* what, Dims dims) {
      return b.Parameter(name(what), DType::kF32, std::move(dims), {});
    };
    const ValueId d = b.Op("subtract", {x, b.Op("reduce_mean", {x}, last)});
    const ValueId v = b.Op("reduce_mean", {b.Op("multiply", {d, d})}, last);
    const ValueId r = b.Op("sqrt", {b.Op("add", {v, scalar(name("epsilon"), 1e-5f)})});
    const ValueId n = b.Op("add",
                           {b.Op("multiply", {b.Op("divide", {d, r}), parameter("scale", {8})}),
                            parameter("shift", {8})},
                           {}, name("norm"));
    const ValueId w = b.Op("transpose", {parameter("w", {16, 8})}, {{"perm", Dims{1, 0}}});
    const ValueId h = b.Op("add", {parameter("b", {16}), b.Op("matmul", {n, w})});
    const ValueId e = b.Op("erf", {b.Op("divide", {h, scalar(name("root"), 1.41421354f)})});
    const ValueId p = b.Op("add", {e, scalar(name("one"), 1)});
    const ValueId g =
        b.Op("multiply", {b.Op("multiply", {h, p}), scalar(name("half"), 0.5f)}, {}, name("gelu"));
    const ValueId u = b.Op("linear", {g, parameter("u", {8, 16})}, {}, name("linear"));
    x = b.Op("add", {x, u}, {}, name("sum"));
  }
  b.Output("y", x);
  return Bound(&b);
}

TEST(RewriteTest, FusionOfATransformerReachesItsFixedPoint) {
  const Graph graph = Transformer(3);
  std::map<std::string, int> applied;
  absl::StatusOr<Graph> fused = Fuse(Operators(), graph, &applied);
  ASSERT_TRUE(fused.ok()) << fused.status();
  ExpectSound(*fused);
  EXPECT_EQ(applied["layer_norm_bias"], 3);
  EXPECT_EQ(applied["residual_layer_norm"], 2);
  EXPECT_EQ(applied["linear_bias"], 3);
  EXPECT_EQ(applied["gelu_erf(divide, last)"], 3);
  EXPECT_THAT(Ops(*fused),
              ::testing::ElementsAre("layer_norm", "linear", "gelu", "linear",           //
                                     "residual_layer_norm", "linear", "gelu", "linear",  //
                                     "residual_layer_norm", "linear", "gelu", "linear", "add"));
  EXPECT_EQ(Text(*fused), Text(Fused(graph)));
  EXPECT_EQ(Text(*fused), Text(Fused(*fused)));
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kParameter && value.kind != ValueKind::kInput) continue;
    EXPECT_NE(fused->FindValue(value.name), kNoValue) << value.name;
  }
  for (const char* name : {"1.norm", "1.gelu", "1.linear", "2.sum"}) {
    EXPECT_THAT(Text(*fused), HasSubstr(absl::StrCat(name, ": "))) << name;
  }
  EXPECT_THAT(Text(*fused), HasSubstr("1.norm: 1.norm 0.sum = residual_layer_norm"));
  for (int seed = 0; seed < 3; ++seed) {
    ExpectSame(graph, *fused, seed, 3e-5);
    ExpectSame(graph, Fused(graph, /*with_choices=*/true), seed, 3e-5);
  }
}

TEST(RewriteTest, ThousandNodesTakeWellUnderASecond) {
  const Graph graph = Transformer(60);
  ASSERT_GT(graph.nodes().size(), 1000u);
  const auto start = std::chrono::steady_clock::now();
  const Graph fused = Fused(graph);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(fused.nodes().size(), 4 * 60 + 1u);
  EXPECT_LT(taken.count(), 5);  // 0.1 s; sanitizers and busy machines are slower
}

TEST(RewriteTest, ResidualThatNormWeightNeedsIsNotFused) {
  GraphBuilder b(Operators(), "graph");
  const ValueId x = b.Input("x", DType::kF32, {-1, 8}), r = b.Input("r", DType::kF32, {-1, 8});
  const ValueId s = b.Op("add", {x, r});
  const ValueId w = b.Op("reduce_mean", {s}, {{"axes", Dims{0}}});
  b.Output("y", b.Op("rms_norm", {s, w}));
  EXPECT_EQ(Fused(Bound(&b)).nodes().size(), 3u);
}

TEST(RewriteTest, InterdependentMatchesAreAppliedOneByOne) {
  GraphBuilder b(Operators(), "graph");
  const ValueId x = b.Input("x", DType::kF32, {-1, 8}), r = b.Input("r", DType::kF32, {-1, 8});
  const ValueId s = b.Op("add", {x, r}, {}, "s"), t = b.Op("add", {x, x}, {}, "t");
  const ValueId ws = b.Op("reduce_mean", {s}, {{"axes", Dims{0}}});
  const ValueId wt = b.Op("reduce_mean", {t}, {{"axes", Dims{0}}});
  b.Output("y", b.Op("rms_norm", {s, wt}, {}, "y"));
  b.Output("z", b.Op("rms_norm", {t, ws}, {}, "z"));
  const Graph graph = Bound(&b);
  const RewriteRule rule = BuiltIn("residual_rms_norm");
  ASSERT_EQ(FindMatches(Operators(), graph, rule).size(), 2u);
  const Graph fused = Fused(graph);
  ExpectSound(fused);
  EXPECT_EQ(fused.nodes().size(), 5u);
}

TEST(RewriteTest, UserRuleIsApplied) {
  const std::vector<RewriteRule> rules = Rules(R"(
# what nobody would write
rule twice
  doc "relu of relu"
  t = relu(x)
  y = relu(t)
  =>
  y = relu(x)
  example x: f32[3, 5]

rule products
  doc "two products with numbers are one"
  t = multiply_scalar(x) {value: a}
  y = multiply_scalar(t) {value: b}
  =>
  y = multiply_scalar(x) {value: a * b}
  example x: f32[3, 5], a: 0.5, b: -3
)");
  ASSERT_EQ(rules.size(), 2u);
  for (const RewriteRule& rule : rules) {
    absl::StatusOr<Graph> example = ExampleGraph(Operators(), rule);
    ASSERT_TRUE(example.ok()) << example.status();
    const std::vector<Match> matches = FindMatches(Operators(), *example, rule);
    ASSERT_EQ(matches.size(), 1u);
    absl::StatusOr<Graph> after = Apply(Operators(), *example, rule, matches[0]);
    ASSERT_TRUE(after.ok()) << after.status();
    ExpectSame(*example, *after, 1);
  }
  GraphBuilder b(Operators(), "graph");
  ValueId v = b.Parameter("x", DType::kF32, {3, 5}, {});
  for (int i = 0; i < 5; ++i) v = b.Op("relu", {v}, {}, absl::StrCat("r", i));
  for (int i = 0; i < 5; ++i) {
    v = b.Op("multiply_scalar", {v}, {{"value", 2.0}}, absl::StrCat("m", i));
  }
  b.Output("y", v);
  std::map<std::string, int> applied;
  absl::StatusOr<Graph> after = Rewrite(Operators(), Bound(&b), rules, &applied);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(Text(*after), "r4: r4 = relu(x )\nm4: m4 = multiply_scalar(r4 )\ny = m4 f32[3, 5]\n");
  EXPECT_EQ(after->node(1).attributes.Float("value"), 32);
  EXPECT_EQ(applied["twice"] + applied["products"], 8);
}

TEST(RewriteTest, RulesThatUndoEachOtherAreRefused) {
  const std::vector<RewriteRule> rules =
      Rules("rule swap\n y = add(a, b)\n =>\n y = add(b, a)\n example a: f32[2], b: f32[2]\n");
  Layer layer;
  layer.builder.Output("result", layer.y);
  const absl::Status status = Rewrite(Operators(), Bound(&layer.builder), rules).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rule 'swap'"));
}

TEST(RewriteTest, MatchOfAnotherGraphIsRefused) {
  const RewriteRule rule = BuiltIn("activation(linear, relu)");
  const absl::StatusOr<Graph> graph = ExampleGraph(Operators(), rule);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Match match = FindMatches(Operators(), *graph, rule).at(0);
  const absl::Status status = Apply(Operators(), Graph(), rule, match).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(RewriteTest, ErrorsOfTheParserNameLineAndRule) {
  const struct {
    const char* lines;  // of rule "r", which begins in line 2
    const char* line;
    const char* what;
  } kCases[] = {
      {"y = rely(x)\n=>\ny = relu(x)", "line 3", "unknown operator 'rely'"},
      {"y = relu(x) {slope: 1}\n=>\ny = relu(x)", "line 3", "has no attribute 'slope'"},
      {"y = relu(x\n=>\ny = relu(x)", "line 3", "expected ')', found the end of the line"},
      {"y = relu(x, z)\n=>\ny = relu(x)", "line 3", "takes at most 1 inputs"},
      {"y = add(x)\n=>\ny = relu(x)", "line 3", "needs input 'b'"},
      {"y, z = relu(x)\n=>\ny = relu(x)", "line 3", "has 1 outputs, found names for 2"},
      {"t = relu(x)\ny = relu(t)\n=>\ny = add(x, t)", "line 6", "reads 't', which goes"},
      {"y = relu(x)\n=>\ny = relu(z)", "line 2", "'z' is in no node of the pattern"},
      {"y = relu(x)\n=>\nz = relu(x)", "line 2", "must compute a result of the last node"},
      {"z = tanh(x)\ny = relu(x)\n=>\ny = relu(x)", "line 2", "does not depend on 'tanh'"},
      {"y = relu(x)\ny = relu(x)\n=>\ny = relu(x)", "line 4", "'y' is computed twice"},
      {"y = relu(t)\nt = relu(x)\n=>\ny = relu(x)", "line 2", "'t' before it is computed"},
      {"y = relu(x)\n=>\ny = add_scalar(x) {value: c}", "line 5", "'c' is no number"},
      {"y = relu(x)\nrequire c > 0\n=>\ny = relu(x)", "line 4", "'c' is no number"},
      {"y = relu(x)\nrequire 2 = 0\n=>\ny = relu(x)", "line 4", "expected '<' or '>', found '='"},
      {"y = relu(x)\nshape x: f99[2]\n=>\ny = relu(x)", "line 4", "expected an element type"},
      {"y = relu(x)\nbanana\n=>\ny = relu(x)", "line 4", "expected a node"},
      {"y = relu(x)", "line 4", "expected '=>'"},
      {"either a b\ny = relu(x)\n=>\ny = relu(x)", "line 5", "outside of 'either'"},
      {"either a b\ny = relu(x)\nend\n=>\neither a c\nend", "line 7", "without an alternative"},
      {"y = softmax(x) {axis: last\n=>\ny = relu(x)", "line 3", "expected '}'"},
      {"y = matmul(x, w) {transpose_b: 1}\n=>\ny = relu(x)", "line 3",
       "expected 'true' or 'false'"},
      {"=>\ny = relu(x)", "line 2", "expected a node above '=>'"},
      {"y = relu(x)\n=>\n_ = relu(x)", "line 5", "a name for every result"},
      {"y = relu(x)\n=>\ny = relu(x) {*: x}", "line 5", "expected a result of 'relu'"},
      {"y = relu(x)\nshape x: [2.5]\n=>\ny = relu(x)", "line 4", "expected an integer"},
      {"y = relu(x)\nshape x: [1.2.3]\n=>\ny = relu(x)", "line 4", "expected a number"},
      {"y = relu(x)\n=>\ny = relu(x)\nexample x: f32[9, 1e9]", "line 6", "at most 1048576"},
      {"doc relu\ny = relu(x)\n=>\ny = relu(x)", "line 3", "expected a quoted sentence"},
  };
  for (const auto& bad : kCases) {
    const auto rules = ParseRules(Operators(), absl::StrCat("\nrule r\n", bad.lines, "\n"));
    EXPECT_THAT(std::string(rules.status().message()),
                AllOf(HasSubstr(absl::StrCat(bad.line, ", rule 'r': ")), HasSubstr(bad.what)))
        << bad.lines;
  }
  EXPECT_THAT(std::string(ParseRules(Operators(), "\ny = relu(x)").status().message()),
              HasSubstr("line 2: expected 'rule NAME'"));
}

}  // namespace
}  // namespace espalier
