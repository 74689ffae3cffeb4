// Values that rewrites removed from a plan are computed again as the model without rewrites has
// them.
#include "server/replay/derived_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/precision.h"
#include "ops/probe/expression.h"
#include "ops/rewrite/fuse.h"
#include "server/replay/probe_set.h"
#include "server/replay/program_questions.h"
#include "server/replay/step_answers.h"
#include "worker/executor/executor.h"
#include "worker/plan_fixture.h"
#include "worker/trainer/probe_reader.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Biases, activations and batch norm, which rules fuse.
Graph SmallModel() {
  GraphBuilder b(Registry(), "model");
  const Initializer init{Initializer::kNormal, 0.3};
  const Initializer ones{Initializer::kOnes, 0}, zeros{};
  ValueId h = b.Op(
      "linear",
      {b.Input("x", DType::kF32, {-1, 12}), b.Parameter("fc1.weight", DType::kF32, {16, 12}, init)},
      {}, "product1");
  h = b.Op("add", {h, b.Parameter("fc1.bias", DType::kF32, {16}, init)}, {}, "biased1");
  const ValueId stats = b.Op("batch_norm_stats", {h}, {}, "bn.stats");
  h = b.Op("batch_norm",
           {h, b.Parameter("bn.scale", DType::kF32, {16}, ones),
            b.Parameter("bn.bias", DType::kF32, {16}, zeros),
            b.Parameter("bn.running_mean", DType::kF32, {16}, zeros, false),
            b.Parameter("bn.running_var", DType::kF32, {16}, ones, false), stats},
           {}, "bn");
  h = b.Op("relu", {h}, {}, "act");
  h = b.Op("dropout", {h}, {{"rate", 0.2}}, "drop");
  h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {4, 16}, init)}, {}, "product2");
  h = b.Op("add", {h, b.Parameter("fc2.bias", DType::kF32, {4}, init)}, {}, "logits");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  return Bound(b.Build());
}

std::vector<v1::Program> ProgramsOf(const Graph& graph) {
  v1::SearchOptions search;
  search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  auto plan = MakePlan(Problem(graph, 1), search);
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto lowered = LowerPlan(Registry(), graph, *plan, Options("sgd"));
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered->training;
}

std::vector<ProbeExpression> Probes(const std::vector<std::string>& log) {
  auto probes = ParseProbes(log);
  EXPECT_TRUE(probes.ok()) << probes.status();
  return *probes;
}

// What a replay reads of step `step`.
std::vector<v1::HistoryRow> ReadFound(const std::vector<v1::Program>& programs,
                                      const FoundProbes& found, int64_t step) {
  std::vector<v1::HistoryRow> rows;
  StepAnswers together(&found);
  OnRanks(programs, [&](int rank, Executor& executor) -> absl::Status {
    ProbeReader::Probes reads;
    reads.Assign(found.by_rank[rank].begin(), found.by_rank[rank].end());
    auto reader = ProbeReader::Create(&executor, reads);
    if (!reader.ok()) return reader.status();
    for (int64_t i = 0; i <= step; ++i) {
      if (absl::Status s = i == step ? (*reader)->BeginStep() : absl::OkStatus(); !s.ok()) return s;
      auto result = executor.Step(i);
      if (!result.ok()) return result.status();
    }
    auto results = (*reader)->EndStep();
    if (!results.ok()) return results.status();
    v1::ProbeResults message;
    message.set_step(step);
    for (v1::RankProbeResult& one : *results) *message.add_results() = std::move(one);
    auto added = together.Add(static_cast<size_t>(rank), message);
    if (!added.ok()) return added.status();
    rows = *std::move(added);
    return absl::OkStatus();
  });
  return rows;
}

std::vector<v1::HistoryRow> Read(const Graph& graph, const std::vector<v1::Program>& programs,
                                 const std::vector<ProbeExpression>& probes, int64_t step) {
  const auto found = FindProbes(probes, ProbePoints(graph, programs), programs.size());
  EXPECT_TRUE(found.ok()) << found.status();
  for (const auto& [probe, why] : found->lacking) ADD_FAILURE() << probe << ": " << why;
  return ReadFound(programs, *found, step);
}

std::vector<double> Numbers(const v1::ProbeValue& value) {
  if (value.has_scalar()) return {value.scalar()};
  std::vector<double> numbers;
  const std::string& data = value.tensor().data();
  for (size_t i = 0; i + 4 <= data.size() && value.tensor().dtype() == v1::F32; i += 4) {
    float element = 0;
    std::memcpy(&element, &data[i], 4);
    numbers.push_back(element);
  }
  for (size_t i = 0; i + 8 <= data.size() && value.tensor().dtype() == v1::I64; i += 8) {
    int64_t element = 0;
    std::memcpy(&element, &data[i], 8);
    numbers.push_back(static_cast<double>(element));
  }
  return numbers;
}

const std::vector<std::string>& RemovedLog() {
  static const auto* log = new std::vector<std::string>{
      "product1",      "norm(product1)", "bn",
      "max(bn)",       "product2",       "confusion(product2, batch(labels))",
      "grad(bn)",      "norm(grad(bn))", "grad(product1)",
      "grad(product2)"};
  return *log;
}

void ExpectAsUnfused(const Graph& planned, double tolerance) {
  const Graph original = SmallModel();
  const std::vector<v1::Program> programs = ProgramsOf(planned);
  const ProbePoints points(planned, programs);
  std::vector<ProbeExpression> removed;
  for (const ProbeExpression& probe : Probes(RemovedLog())) {
    const ProbeTarget& target = probe.targets[0];
    const bool gradient = target.kind == ProbeTarget::kGrad;
    const bool there =
        gradient ? points.Gradient(target.name).ok() : points.Value(target.name).ok();
    if (!there) removed.push_back(probe);
  }
  ASSERT_EQ(removed.size(), RemovedLog().size()) << "rules no longer fuse them";
  std::vector<ProbeExpression> asked = removed;
  const std::vector<ProbeExpression> others = Probes({"act", "norm(loss)"});
  asked.insert(asked.begin(), others.begin(), others.end());
  const auto derived = DerivedValues::Make(Registry(), original, points, asked);
  ASSERT_TRUE(derived.ok()) << derived.status();
  EXPECT_THAT(derived->lacking(), ::testing::IsEmpty());
  EXPECT_EQ(derived->probes(), removed);
  EXPECT_THAT(derived->values(), ::testing::ElementsAre("bn", "grad(bn)", "grad(product1)",
                                                        "grad(product2)", "product1", "product2"));
  EXPECT_EQ(derived->TypeOf(removed[0])->dims, (Dims{kBatch, 16}));
  for (const int64_t step : {0, 2}) {
    std::vector<ProbeExpression> read = others;
    read.insert(read.end(), derived->sources().begin(), derived->sources().end());
    auto answers = derived->Complete(Read(planned, programs, read, step), step, true);
    ASSERT_TRUE(answers.ok()) << answers.status();
    ASSERT_GE(answers->size(), others.size());
    EXPECT_EQ((*answers)[0].name(), "act");
    EXPECT_TRUE((*answers)[0].value().has_tensor());
    EXPECT_EQ((*answers)[1].name(), "loss");
    answers->erase(answers->begin(), answers->begin() + 2);
    const auto expected = Read(original, ProgramsOf(original), removed, step);
    ASSERT_EQ(answers->size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const v1::HistoryRow& answer = (*answers)[i];
      EXPECT_EQ(answer.name(), expected[i].name());
      EXPECT_EQ(answer.reduction(), expected[i].reduction());
      EXPECT_EQ(answer.step(), step);
      const std::vector<double> numbers = Numbers(answer.value());
      const std::vector<double> wanted = Numbers(expected[i].value());
      ASSERT_EQ(numbers.size(), wanted.size()) << answer.name();
      ASSERT_FALSE(numbers.empty());
      const bool counts = answer.reduction() == "confusion";
      double sum = 0, differing = 0, largest = 0;
      for (const double number : wanted) largest = std::max(largest, std::abs(number));
      for (size_t k = 0; k < numbers.size(); ++k) {
        sum += numbers[k];
        differing += std::abs(numbers[k] - wanted[k]);
        if (counts) continue;
        EXPECT_NEAR(numbers[k], wanted[k], tolerance * largest)
            << answer.name() << " of step " << step << ", element " << k;
      }
      if (!counts) continue;
      EXPECT_EQ(sum, kBatch);
      EXPECT_LE(differing, tolerance < 1e-3 ? 0 : 2);
    }
  }
}

TEST(DerivedValues, AreThoseOfTheModelWithoutRewrites) {
  const auto fused = Fuse(Registry(), SmallModel());
  ASSERT_TRUE(fused.ok()) << fused.status();
  ExpectAsUnfused(*fused, 1e-4);
}

TEST(DerivedValues, AreComputedFromNarrowValues) {
  const auto fused = Fuse(Registry(), SmallModel());
  ASSERT_TRUE(fused.ok()) << fused.status();
  const auto narrow = WithPrecision(Registry(), *fused, DType::kBF16);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  ExpectAsUnfused(*narrow, 0.05);
}

TEST(DerivedValues, WhatCannotBeComputedAgainIsListedWithTheReason) {
  const Graph original = SmallModel();
  const auto no_values = [](const ProbeTarget& target) {
    return target.kind == ProbeTarget::kParam || target.name == "x" ||
           (target.kind == ProbeTarget::kValue && target.name == "labels");
  };
  const auto derived = DerivedValues::Make(
      Registry(), original, no_values,
      Probes({"norm(product2)", "loss", "norm(nothing)", "norm(grad(product1))", "norm(act)",
              "norm(prod*)", "norm(param(fc1.weight))", "confusion(product1, batch(labels))"}));
  ASSERT_TRUE(derived.ok()) << derived.status();
  ASSERT_EQ(derived->lacking().size(), 4u);
  EXPECT_EQ(derived->lacking()[0].second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(derived->lacking()[0].second.message()), HasSubstr("'drop'"));
  EXPECT_THAT(std::string(derived->lacking()[1].second.message()), HasSubstr("'loss'"));
  EXPECT_THAT(std::string(derived->lacking()[2].second.message()), HasSubstr("'drop.grad'"));
  EXPECT_THAT(std::string(derived->lacking()[3].second.message()), HasSubstr("batch(labels)"));
  EXPECT_EQ(derived->probes(), Probes({"norm(act)"}));  // the others are for FindProbes
  const auto answers = derived->Complete({}, 0, true);
  EXPECT_EQ(answers.status().code(), absl::StatusCode::kInternal) << "no source was read";
}

std::map<std::string, absl::Status> Lacking(const ProgramProbes& probes) {
  return {probes.read.lacking.begin(), probes.read.lacking.end()};
}

TEST(ProgramProbes, WildcardsMatchWhatTheProgramsDoNotHave) {
  const auto fused = Fuse(Registry(), SmallModel());
  ASSERT_TRUE(fused.ok()) << fused.status();
  const std::vector<v1::Program> programs = ProgramsOf(*fused);
  const ProbePoints points(*fused, programs);
  int64_t batch = kBatch;
  const auto find = [&](const std::vector<std::string>& log) {
    return FindProgramProbes(Registry(), points, 1, Probes(log), [&] {
      Graph original = SmallModel();
      for (size_t v = 0; v < original.values().size(); ++v) {
        Value& value = original.mutable_value(static_cast<ValueId>(v));
        if (!value.type.dims.empty() && value.kind != ValueKind::kParameter) {
          value.type.dims[0] = batch;
        }
      }
      return absl::StatusOr<Graph>(original);
    });
  };
  auto found = find({"norm(*)", "max(prod*)", "std(bn)", "mean(nothing*)"});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->derived.values(), ::testing::IsSupersetOf({"bn", "product1", "product2"}));
  EXPECT_THAT(found->derived.probes(),
              ::testing::IsSupersetOf(
                  Probes({"norm(product1)", "max(product1)", "max(product2)", "std(bn)"})));
  const auto texts = [&found] {
    std::set<std::string> read;
    for (const NamedProbe& probe : found->read.probes) read.insert(ToString(probe.probe));
    return read;
  };
  std::set<std::string> read = texts();
  for (const ProbeExpression& source : found->derived.sources()) {
    EXPECT_EQ(read.erase(ToString(source)), 1u) << ToString(source);
  }
  EXPECT_THAT(read, ::testing::IsSupersetOf({"norm(act)", "norm(loss)", "norm(logits)"}));
  EXPECT_THAT(Lacking(*found), ::testing::ElementsAre(::testing::Key("mean(nothing*)")));
  // What is too much to be computed again is lacking, unless it was asked for by name.
  batch = int64_t{1} << 40;
  found = find({"norm(*)", "max(prod*)"});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->derived.values(), ::testing::IsEmpty());
  EXPECT_EQ(texts(), read);
  const std::map<std::string, absl::Status> lacking = Lacking(*found);
  ASSERT_TRUE(lacking.contains("norm(bn)") && lacking.contains("max(prod*)"));
  EXPECT_THAT(std::string(lacking.at("max(prod*)").message()), HasSubstr("ask for fewer"));
  EXPECT_FALSE(lacking.contains("norm(*)"));
  EXPECT_EQ(find({"norm(*)", "norm(bn)"}).status().code(), absl::StatusCode::kInvalidArgument);
}

// Of graphs as they were submitted, whose batch is open.
TEST(DerivedValues, TheGraphBeforeRewritesHasTheDimensionsOfThePlanned) {
  GraphBuilder b(Registry(), "open");
  const ValueId x = b.Input("x", DType::kF32, {-1, 12});
  b.Output("loss", b.Op("reduce_mean", {x}, {{"keepdims", false}}, "loss"));
  const auto model = b.Build();
  ASSERT_TRUE(model.ok()) << model.status();
  const auto bound = GraphBeforeRewrites(Registry(), *model, SmallModel(), kBatch);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(bound->value(bound->FindValue("x")).type.dims, (Dims{kBatch, 12}));
}

v1::ReplayGraph FragmentOf(const std::string& name, GraphBuilder& b) {
  v1::ReplayGraph fragment;
  fragment.set_name(name);
  auto graph = b.Build();
  EXPECT_TRUE(graph.ok()) << graph.status();
  *fragment.mutable_graph() = ToProto(*graph);
  return fragment;
}

v1::ReplayGraph Fragment(const std::string& name, const std::string& op, const std::string& input,
                         const Dims& dims, DType dtype = DType::kF32) {
  GraphBuilder b(Registry(), name);
  b.Output("y", b.Op(op, {b.Input(input, dtype, dims)}, {}, op));
  return FragmentOf(name, b);
}

// A product of two tensors, and its sum.
v1::ReplayGraph Product(const std::string& name, const std::string& left,
                        const std::string& right) {
  GraphBuilder b(Registry(), name);
  const ValueId product =
      b.Op("multiply", {b.Input(left, DType::kF32, {-1, 16}), b.Input(right, DType::kF32, {})}, {},
           "product");
  b.Output("all", product);
  b.Output("sum", b.Op("reduce_sum", {product}, {{"keepdims", false}}, "sum"));
  return FragmentOf(name, b);
}

absl::StatusOr<ProgramQuestions> FindAsked(const Graph& planned,
                                           const std::vector<v1::Program>& programs,
                                           const std::vector<std::string>& log,
                                           const std::vector<v1::ReplayGraph>& graphs) {
  v1::ReplaySpec spec;
  for (const std::string& probe : log) spec.add_log(probe);
  for (const v1::ReplayGraph& graph : graphs) *spec.add_graphs() = graph;
  const absl::StatusOr<ReplayQuestions> asked = ParseQuestions(Registry(), spec);
  if (!asked.ok()) return asked.status();
  return FindQuestions(Registry(), ProbePoints(planned, programs), programs, *asked,
                       [] { return absl::StatusOr<Graph>(SmallModel()); });
}

void ExpectFragments(const Graph& planned, double tolerance) {
  const std::vector<v1::Program> programs = ProgramsOf(planned);
  // "bn" is in no program; "act" and a gradient are logged, too.
  const auto asked =
      FindAsked(planned, programs, {"act", "norm(loss)", "grad(fc2.weight)"},
                {Product("angle", "grad(fc2.weight)", "param(fc2.weight)"),
                 Product("gate", "act", "bn"), Fragment("squashed", "tanh", "logits", {-1, 4}),
                 Fragment("none", "tanh", "grad(fc9.weight)", {-1, 4})});
  ASSERT_TRUE(asked.ok()) << asked.status();
  ASSERT_EQ(asked->lacking_fragments.size(), 1u);
  const auto& [name, why] = asked->lacking_fragments[0];
  EXPECT_EQ(name, "none");
  EXPECT_EQ(why.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(why.message()), HasSubstr("graph 'none': there is no gradient of 'fc9"));
  const auto rows = asked->Complete(ReadFound(programs, asked->probes.read, 1), 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::map<std::string, std::vector<double>> numbers;
  for (const v1::HistoryRow& row : *rows) {
    EXPECT_EQ(row.step(), 1);
    EXPECT_TRUE(numbers.emplace(row.name(), Numbers(row.value())).second) << row.name();
  }
  EXPECT_THAT(numbers, ::testing::SizeIs(8)) << "what was asked for, and the answers, only";
  const Graph original = SmallModel();
  const std::vector<v1::HistoryRow> read =
      Read(original, ProgramsOf(original),
           Probes({"grad(fc2.weight)", "param(fc2.weight)", "act", "bn", "logits"}), 1);
  const auto expect = [&](const std::string& answer, std::vector<double> wanted) {
    double largest = 0;
    for (const double number : wanted) largest = std::max(largest, std::abs(number));
    ASSERT_EQ(numbers[answer].size(), wanted.size()) << answer;
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(numbers[answer][i], wanted[i], tolerance * largest) << answer << " " << i;
    }
  };
  const auto product = [&](size_t left, size_t right) {
    std::vector<double> made = Numbers(read[left].value());
    const std::vector<double> other = Numbers(read[right].value());
    for (size_t i = 0; i < made.size(); ++i) made[i] *= other[i];
    return made;
  };
  for (const auto& [answer, made] :
       {std::pair("angle", product(0, 1)), std::pair("gate", product(2, 3))}) {
    expect(absl::StrCat(answer, ".all"), made);
    expect(absl::StrCat(answer, ".sum"), {std::accumulate(made.begin(), made.end(), 0.0)});
  }
  std::vector<double> squashed = Numbers(read[4].value());
  for (double& number : squashed) number = std::tanh(number);
  expect("squashed", squashed);
}

TEST(GraphFragments, AreEvaluatedOfWhatProbesRead) {
  const auto fused = Fuse(Registry(), SmallModel());
  ASSERT_TRUE(fused.ok()) << fused.status();
  ExpectFragments(*fused, 1e-4);
}

TEST(GraphFragments, ReadNarrowValuesAsTheyDeclareThem) {
  const auto narrow = WithPrecision(Registry(), SmallModel(), DType::kBF16);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  ExpectFragments(*narrow, 0.05);
}

TEST(GraphFragments, AreRefusedWithWhatIsAccepted) {
  const Graph model = SmallModel();
  const std::vector<v1::Program> programs = ProgramsOf(model);
  const auto error = [&](const std::vector<v1::ReplayGraph>& graphs,
                         const std::vector<std::string>& log = {}) {
    const auto asked = FindAsked(model, programs, log, graphs);
    if (!asked.ok()) {
      EXPECT_EQ(asked.status().code(), absl::StatusCode::kInvalidArgument);
      return std::string(asked.status().message());
    }
    EXPECT_THAT(asked->fragments.sources(), ::testing::IsEmpty()) << "read for nothing";
    EXPECT_EQ(asked->lacking_fragments.size(), 1u);
    if (asked->lacking_fragments.empty()) return std::string();
    const absl::Status& why = asked->lacking_fragments[0].second;
    EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument);
    return std::string(why.message());
  };
  EXPECT_THAT(error({Fragment("a", "tanh", "norm(logits)", {-1, 4})}),
              HasSubstr("graph 'a': its input 'norm(logits)' is not one tensor; accepted"));
  EXPECT_THAT(error({Fragment("a", "tanh", "state(fc*, *)", {})}), HasSubstr("is not one tensor"));
  EXPECT_THAT(error({Product("a", "grad(fc*)", "param(*)")}),
              HasSubstr("the patterns 'fc*' and '*'; accepted: one"));
  EXPECT_THAT(error({Fragment("a", "tanh", "grad(", {})}), HasSubstr("column 6"));
  EXPECT_THAT(error({Fragment("a", "dropout", "logits", {})}), HasSubstr("random"));
  EXPECT_THAT(error({Fragment("a", "tanh", "logits", {}), Fragment("a", "relu", "act", {})}),
              HasSubstr("graph 'a': another graph"));
  EXPECT_THAT(error({Fragment("a", "tanh", "logits", {-1, 5})}),
              HasSubstr("its input 'logits' is declared as f32[?, 5]; in the run it is f32[8, 4]"));
  EXPECT_THAT(error({Fragment("a", "tanh", "labels", {-1})}),
              HasSubstr("declared as f32[?]; in the run it is i32[8]"));
  EXPECT_THAT(error({Fragment("a", "tanh", "labels", {-1}, DType::kI32)}),
              HasSubstr("node 'tanh' (tanh"));
  EXPECT_THAT(error({Fragment("act", "tanh", "logits", {})}), HasSubstr("value of this name"));
  EXPECT_THAT(error({Fragment("", "tanh", "logits", {})}), HasSubstr("1 to 200 bytes"));
  EXPECT_THAT(error({v1::ReplayGraph()}), HasSubstr("its name"));
  GraphBuilder b(Registry(), "trained");
  b.Output("y", b.Op("add",
                     {b.Input("logits", DType::kF32, {-1, 4}),
                      b.Parameter("w", DType::kF32, {4}, Initializer{})},
                     {}, "sum"));
  EXPECT_THAT(error({FragmentOf("a", b)}), HasSubstr("an input named param(w)"));
  // An operator that makes much of little.
  GraphBuilder much(Registry(), "much");
  much.Output("y", much.Op("expand", {much.Input("loss", DType::kF32, {})},
                           {{"shape", std::vector<int64_t>{1 << 20, 1 << 20}}}, "expand"));
  EXPECT_THAT(error({FragmentOf("a", much)}), HasSubstr("bytes together"));
  v1::ReplayGraph large = Fragment("a", "tanh", "logits", {});
  large.mutable_graph()->mutable_metadata()->emplace("k", std::string(1 << 20, 'x'));
  EXPECT_THAT(error({large}), HasSubstr("accepted: 64 of 1048576"));
  v1::ReplayGraph onnx;
  onnx.set_name("a");
  onnx.set_onnx("no model");
  EXPECT_THAT(error({onnx}), HasSubstr("graph 'a': "));
}

TEST(GraphFragments, WildcardsMeanEachNameThatMatches) {
  const Graph model = SmallModel();
  const std::vector<v1::Program> programs = ProgramsOf(model);
  const auto asked = FindAsked(
      model, programs, {},
      {Product("angle", "grad(fc*)", "param(fc*)"), Fragment("none", "tanh", "grad(bc*)", {})});
  ASSERT_TRUE(asked.ok()) << asked.status();
  std::set<std::string> answers;
  for (const auto& [name, type] : asked->fragments.answers()) answers.insert(name);
  EXPECT_THAT(answers, ::testing::ElementsAre("angle(fc2.weight).all", "angle(fc2.weight).sum"));
  std::map<std::string, std::string> lacking;
  for (const auto& [name, why] : asked->lacking_fragments)
    lacking[name] = std::string(why.message());
  // Of these, the graph declares other shapes.
  EXPECT_THAT(lacking["angle(fc1.bias)"], HasSubstr("in the run it is f32[16]"));
  EXPECT_THAT(lacking["none"], HasSubstr("'grad(bc*)': no gradient matches; there are: "));
  EXPECT_FALSE(lacking.contains("angle"));
  const auto rows = asked->Complete(ReadFound(programs, asked->probes.read, 0), 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(*rows, ::testing::SizeIs(2));
  const auto none =
      FindAsked(model, programs, {}, {Product("angle", "grad(*.bias)", "param(*.bias)")});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->lacking_fragments.back().first, "angle");
}

TEST(ProbePoints, OutputsHaveTheirNames) {
  Graph model = SmallModel();
  model.outputs.emplace_back("objective", model.FindValue("loss"));
  model.outputs.emplace_back("hidden", model.FindValue("act"));
  model.outputs.emplace_back("logits", model.FindValue("act"));  // a value has this name
  const std::vector<v1::Program> programs = ProgramsOf(model);
  const std::vector<v1::HistoryRow> rows =
      Read(model, programs,
           Probes({"objective", "loss", "grad(hidden)", "grad(act)", "logits", "mean(obj*)"}), 0);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].name(), "objective");
  EXPECT_EQ(Numbers(rows[0].value()), Numbers(rows[1].value()));
  EXPECT_EQ(rows[2].name(), "grad(hidden)");
  EXPECT_EQ(Numbers(rows[2].value()), Numbers(rows[3].value()));
  EXPECT_EQ(rows[4].value().tensor().dims(1), 4);
  EXPECT_EQ(rows[5].name(), "objective");
  const auto none =
      FindProbes(Probes({"norm(lgits)", "norm(lg*)"}), ProbePoints(model, programs), 1);
  ASSERT_TRUE(none.ok()) << none.status();
  ASSERT_EQ(none->lacking.size(), 2u);
  EXPECT_THAT(std::string(none->lacking[0].second.message()), HasSubstr("there are: 'logits'"));
  EXPECT_THAT(std::string(none->lacking[1].second.message()),
              HasSubstr("no value matches; there are: "));
}

}  // namespace
}  // namespace espalier
