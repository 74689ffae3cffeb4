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
#include "server/replay/probe_set.h"
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

DerivedValues::Readable ReadableIn(const ProbePoints& points) {
  return [&points](const ProbeTarget& target) {
    switch (target.kind) {
      case ProbeTarget::kValue:
        return points.Value(target.name).ok();
      case ProbeTarget::kParam:
        return points.Parameter(target.name).ok();
      case ProbeTarget::kBatch:
        return points.Batch(target.name).ok();
      default:
        return false;
    }
  };
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
  const auto derived = DerivedValues::Make(Registry(), original, ReadableIn(points), removed);
  ASSERT_TRUE(derived.ok()) << derived.status();
  EXPECT_THAT(derived->lacking(), ::testing::IsEmpty());
  ASSERT_EQ(derived->size(), removed.size());
  ASSERT_EQ(derived->notes().size(), removed.size());
  EXPECT_THAT(derived->notes()[0], HasSubstr("'product1' is computed again from "));
  for (const int64_t step : {0, 2}) {
    const auto answers =
        derived->Answer(step, Read(planned, programs, derived->sources(), step), true);
    ASSERT_TRUE(answers.ok()) << answers.status();
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
    return target.kind == ProbeTarget::kParam || target.name == "x";
  };
  const auto derived =
      DerivedValues::Make(Registry(), original, no_values,
                          Probes({"norm(product2)", "norm(nothing)", "norm(grad(product1))",
                                  "norm(act)", "confusion(product1, batch(labels))"}));
  ASSERT_TRUE(derived.ok()) << derived.status();
  ASSERT_EQ(derived->lacking().size(), 4u);
  EXPECT_EQ(derived->lacking()[0].second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(derived->lacking()[0].second.message()), HasSubstr("'drop'"));
  EXPECT_THAT(std::string(derived->lacking()[1].second.message()), HasSubstr("'nothing'"));
  EXPECT_THAT(std::string(derived->lacking()[2].second.message()), HasSubstr("grad(product1)"));
  EXPECT_THAT(std::string(derived->lacking()[3].second.message()), HasSubstr("batch(labels)"));
  EXPECT_EQ(derived->size(), 1u);  // norm(act)
  const auto answers = derived->Answer(0, {}, true);
  EXPECT_EQ(answers.status().code(), absl::StatusCode::kInternal) << "no source was read";
}

}  // namespace
}  // namespace espalier
