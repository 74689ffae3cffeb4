// Values that rewrites removed from a plan are computed again as the model without rewrites has
// them.
#include "server/replay/derived_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/precision.h"
#include "ops/probe/expression.h"
#include "ops/rewrite/fuse.h"
#include "server/replay/graph_fragments.h"
#include "server/replay/probe_set.h"
#include "server/replay/program_probes.h"
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
std::vector<v1::HistoryRow> Read(const Graph& graph, const std::vector<v1::Program>& programs,
                                 const std::vector<ProbeExpression>& probes, int64_t step) {
  std::vector<v1::HistoryRow> rows;
  auto found = FindProbes(probes, ProbePoints(graph, programs), programs.size());
  EXPECT_TRUE(found.ok()) << found.status();
  for (const auto& [probe, why] : found->lacking) ADD_FAILURE() << probe << ": " << why;
  StepAnswers together(&*found);
  OnRanks(programs, [&](int rank, Executor& executor) -> absl::Status {
    ProbeReader::Probes reads;
    reads.Assign(found->by_rank[rank].begin(), found->by_rank[rank].end());
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
      "product1", "norm(product1)", "bn",
      "max(bn)",  "product2",       "confusion(product2, batch(labels))"};
  return *log;
}

void ExpectAsUnfused(const Graph& planned, double tolerance) {
  const Graph original = SmallModel();
  const std::vector<v1::Program> programs = ProgramsOf(planned);
  const ProbePoints points(planned, programs);
  std::vector<ProbeExpression> removed;
  for (const ProbeExpression& probe : Probes(RemovedLog())) {
    if (!points.Value(probe.targets[0].name).ok()) removed.push_back(probe);
  }
  ASSERT_EQ(removed.size(), RemovedLog().size()) << "rules no longer fuse them";
  std::vector<ProbeExpression> asked = removed;
  const std::vector<ProbeExpression> others = Probes({"act", "norm(loss)"});
  asked.insert(asked.begin(), others.begin(), others.end());
  const auto derived = DerivedValues::Make(Registry(), original, points, asked);
  ASSERT_TRUE(derived.ok()) << derived.status();
  EXPECT_THAT(derived->lacking(), ::testing::IsEmpty());
  EXPECT_EQ(derived->probes(), removed);
  EXPECT_THAT(derived->values(), ::testing::ElementsAre("bn", "product1", "product2"));
  EXPECT_EQ(derived->Elements(removed[0]), kBatch * 16);
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
  ASSERT_EQ(derived->lacking().size(), 3u);
  EXPECT_EQ(derived->lacking()[0].second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(derived->lacking()[0].second.message()), HasSubstr("'drop'"));
  EXPECT_THAT(std::string(derived->lacking()[1].second.message()), HasSubstr("'loss'"));
  EXPECT_THAT(std::string(derived->lacking()[2].second.message()), HasSubstr("batch(labels)"));
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

Graph Fragment(const std::string& input, const std::string& op, const std::string& output) {
  GraphBuilder b(Registry(), output);
  b.Output(output, b.Op(op, {b.Input(input, DType::kF32, {-1, 1})}, {}, op));
  auto graph = b.Build();
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(GraphFragments, AreEvaluatedOfWhatProbesRead) {
  const Graph model = SmallModel();
  const std::vector<v1::Program> programs = ProgramsOf(model);
  // The cosine of the angle between a gradient and its parameter, up to the norms.
  GraphBuilder b(Registry(), "angle");
  const ValueId product = b.Op("multiply",
                               {b.Input("grad(fc2.weight)", DType::kF32, {-1, 1}),
                                b.Input("param(fc2.weight)", DType::kF32, {-1, 1})},
                               {}, "product");
  b.Output("dot", b.Op("reduce_sum", {product}, {{"keepdims", false}}, "sum"));
  auto angle = b.Build();
  ASSERT_TRUE(angle.ok()) << angle.status();
  const auto fragments =
      GraphFragments::Make(Registry(), {*angle, Fragment("logits", "tanh", "squashed")});
  ASSERT_TRUE(fragments.ok()) << fragments.status();
  std::vector<ProbeExpression> read = Probes({"param(fc2.weight)", "logits"});
  EXPECT_THAT(fragments->sources(), ::testing::SizeIs(3));
  read.insert(read.end(), fragments->sources().begin(), fragments->sources().end());
  const std::vector<v1::HistoryRow> all = Read(model, programs, read, 1);
  const auto rows = fragments->Complete(all, 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 4u);
  EXPECT_EQ((*rows)[0].name(), "param(fc2.weight)") << "what was asked for stays";
  EXPECT_EQ((*rows)[1].name(), "logits");
  std::map<std::string, std::vector<double>> numbers;
  for (const v1::HistoryRow& row : all) numbers[row.name()] = Numbers(row.value());
  double dot = 0;
  for (size_t i = 0; i < 64; ++i) {
    dot += numbers.at("grad(fc2.weight)").at(i) * numbers.at("param(fc2.weight)").at(i);
  }
  EXPECT_EQ((*rows)[2].name(), "dot");
  EXPECT_NEAR(Numbers((*rows)[2].value()).at(0), dot, 1e-5);
  EXPECT_EQ((*rows)[3].name(), "squashed");
  const std::vector<double> squashed = Numbers((*rows)[3].value());
  ASSERT_EQ(squashed.size(), 8u * 4);
  for (size_t i = 0; i < squashed.size(); ++i) {
    EXPECT_NEAR(squashed[i], std::tanh(numbers.at("logits")[i]), 1e-6);
  }
}

TEST(GraphFragments, AreRefusedWithWhatIsAccepted) {
  const auto error = [](std::vector<Graph> fragments) {
    const auto made = GraphFragments::Make(Registry(), std::move(fragments));
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  EXPECT_THAT(error({Fragment("norm(fc1)", "tanh", "a")}), HasSubstr("fragment 'a': 'norm(fc1)'"));
  EXPECT_THAT(error({Fragment("fc*", "tanh", "a")}), HasSubstr("'fc*' is not one tensor"));
  EXPECT_THAT(error({Fragment("fc1", "dropout", "a")}), HasSubstr("random"));
  EXPECT_THAT(error({Fragment("x", "tanh", "a"), Fragment("y", "relu", "a")}),
              HasSubstr("output 'a'"));
  EXPECT_THAT(error({SmallModel()}), HasSubstr("param("));
  // Types are known once the values are read.
  const auto fragments = GraphFragments::Make(Registry(), {Fragment("labels", "tanh", "a")});
  ASSERT_TRUE(fragments.ok()) << fragments.status();
  v1::HistoryRow row;
  row.set_name("labels");
  row.set_reduction("full");
  row.mutable_value()->mutable_tensor()->set_dtype(v1::I32);
  row.mutable_value()->mutable_tensor()->add_dims(1);
  row.mutable_value()->mutable_tensor()->set_data(std::string(4, '\0'));
  const auto rows = fragments->Complete({row}, 0);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(rows.status().message()), HasSubstr("fragment 'a', step 0"));
  // An operator that makes much of little.
  GraphBuilder b(Registry(), "much");
  b.Output("a", b.Op("expand", {b.Input("x", DType::kF32, {-1})},
                     {{"shape", std::vector<int64_t>{1 << 20, 1 << 20}}}, "expand"));
  const auto much = GraphFragments::Make(Registry(), {*b.Build()});
  ASSERT_TRUE(much.ok()) << much.status();
  row.set_name("x");
  row.mutable_value()->mutable_tensor()->set_dtype(v1::F32);
  const auto refused = much->Complete({row}, 0);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("bytes"));
}

}  // namespace
}  // namespace espalier
