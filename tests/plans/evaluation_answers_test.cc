// The answers of an evaluation are those of one batch that has all examples and no padding,
// whatever the plan.
#include "server/replay/evaluation_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/rewrite/fuse.h"
#include "planner/lowering/lower_training.h"
#include "planner/pcg/structure.h"
#include "planner/search/search_space.h"
#include "server/replay/probe_set.h"
#include "server/replay/program_questions.h"
#include "server/replay/step_answers.h"
#include "worker/executor/executor.h"
#include "worker/plan_fixture.h"
#include "worker/trainer/probe_reader.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::vector<ProbeExpression> ProbesOf(const std::vector<std::string>& log) {
  auto probes = ParseProbes(log);
  EXPECT_TRUE(probes.ok()) << probes.status();
  return *probes;
}

// Calls `take` with what each rank reads of each batch.
void ReadBatches(const std::vector<v1::Program>& programs, const FoundProbes& found,
                 int64_t batches,
                 const std::function<absl::Status(size_t rank, v1::ProbeResults results)>& take) {
  absl::Mutex mutex;
  OnRanks(programs, [&](int rank, Executor& executor) -> absl::Status {
    ProbeReader::Probes probes;
    probes.Assign(found.by_rank[rank].begin(), found.by_rank[rank].end());
    auto reader = ProbeReader::Create(&executor, probes);
    if (!reader.ok()) return reader.status();
    for (int64_t batch = 0; batch < batches; ++batch) {
      if (absl::Status s = (*reader)->BeginStep(); !s.ok()) return s;
      auto result = executor.Step(batch);
      if (!result.ok()) return result.status();
      auto results = (*reader)->EndStep();
      if (!results.ok()) return results.status();
      v1::ProbeResults message;
      message.set_step(batch);
      message.set_evaluation(true);
      for (v1::RankProbeResult& one : *results) *message.add_results() = std::move(one);
      absl::MutexLock lock(&mutex);
      if (absl::Status s = take(static_cast<size_t>(rank), std::move(message)); !s.ok()) return s;
    }
    return absl::OkStatus();
  });
}

using Rows = std::map<std::string, v1::ProbeValue>;  // by "norm of evaluation.fc2"

Rows Evaluate(const Graph& graph, const std::vector<v1::Program>& programs,
              const std::vector<std::string>& log, const EvaluatedBatches& batches,
              std::vector<std::string>* notes = nullptr, const Graph* original = nullptr,
              const std::vector<v1::ReplayGraph>& graphs = {}) {
  Rows rows;
  v1::ReplaySpec spec;
  spec.mutable_log()->Assign(log.begin(), log.end());
  spec.mutable_graphs()->Assign(graphs.begin(), graphs.end());
  const auto asked = ParseQuestions(Registry(), spec);
  EXPECT_TRUE(asked.ok()) << asked.status();
  if (!asked.ok()) return rows;
  auto probes = FindEvaluationProbes(Registry(), graph, programs, *asked, batches, [&] {
    return absl::StatusOr<Graph>(original != nullptr ? *original : graph);
  });
  EXPECT_TRUE(probes.ok()) << probes.status();
  if (!probes.ok()) return rows;
  EXPECT_TRUE(probes->found.lacking.empty());
  for (const auto& [name, why] : probes->lacking_fragments) ADD_FAILURE() << why;
  if (notes != nullptr) *notes = probes->notes;
  EvaluationAnswers answers(&*probes);
  ReadBatches(programs, probes->found, batches.count,
              [&](size_t rank, v1::ProbeResults results) { return answers.Add(rank, results); });
  auto finished = answers.Finish(12);
  EXPECT_TRUE(finished.ok()) << finished.status();
  if (!finished.ok()) return rows;
  for (const v1::HistoryRow& row : *finished) {
    EXPECT_EQ(row.step(), 12);
    EXPECT_EQ(row.source(), v1::HistoryRow::REPLAY);
    rows[absl::StrCat(row.reduction(), " of ", row.name())] = row.value();
  }
  return rows;
}

template <typename T>
std::vector<T> ElementsOf(const v1::TensorValue& tensor) {
  std::vector<T> elements(tensor.data().size() / sizeof(T));
  std::memcpy(elements.data(), tensor.data().data(), elements.size() * sizeof(T));
  return elements;
}

// All elements of a tensor in each batch, one batch after the other.
template <typename T>
std::vector<T> InAllBatches(const Graph& graph, const std::vector<v1::Program>& programs,
                            const std::string& name, int64_t batches) {
  std::vector<T> elements;
  auto found = FindProbes(ProbesOf({name}), ProbePoints(graph, programs), programs.size());
  EXPECT_TRUE(found.ok() && found->lacking.empty()) << found.status();
  StepAnswers together(&*found);
  ReadBatches(programs, *found, batches,
              [&](size_t rank, v1::ProbeResults results) -> absl::Status {
                auto rows = together.Add(rank, results);
                if (!rows.ok()) return rows.status();
                for (const v1::HistoryRow& row : *rows) {
                  const std::vector<T> more = ElementsOf<T>(row.value().tensor());
                  elements.insert(elements.end(), more.begin(), more.end());
                }
                return absl::OkStatus();
              });
  return elements;
}

const LoweredPlan& Lowered(const Graph& graph) {
  static auto* const lowered = [&] {
    v1::SearchOptions search;
    search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
    auto plan = MakePlan(Problem(graph, 1), search);
    EXPECT_TRUE(plan.ok()) << plan.status();
    auto made = LowerPlan(Registry(), graph, *plan, Options("adam"));
    EXPECT_TRUE(made.ok()) << made.status();
    return new LoweredPlan(*std::move(made));
  }();
  return *lowered;
}

const Graph& Model() {
  static const auto* graph = new Graph(MlpOf(96, 768));
  return *graph;
}

absl::StatusOr<Graph> Original() { return Model(); }

const std::vector<std::string>& EvaluationLog() {
  static const auto* log = new std::vector<std::string>{
      "fc2",
      "norm(fc2)",
      "std(fc1)",
      "max(act)",
      "count_nan(fc2)",
      "histogram(fc1, 8, -1, 1)",
      "histogram(fc2, 5)",
      "quantiles(fc2, 0.1, 0.5)",
      "sample(fc1, 6)",
      "top_k(fc2, 3)",
      "loss",
      "batch(labels)",
      "confusion(fc2, batch(labels))",
  };
  return *log;
}

constexpr int64_t kBatches = 3, kExamples = 21;  // of 24

TEST(EvaluationAnswers, AreOfAllExamplesWithoutPadding) {
  const std::vector<v1::Program>& programs = Lowered(Model()).evaluation;
  std::vector<std::string> notes;
  const Rows rows =
      Evaluate(Model(), programs, EvaluationLog(), {kBatches, kBatch, kExamples}, &notes);
  EXPECT_THAT(notes, ::testing::IsEmpty());
  std::vector<float> logits = InAllBatches<float>(Model(), programs, "fc2", kBatches);
  std::vector<int32_t> labels = InAllBatches<int32_t>(Model(), programs, "batch(labels)", kBatches);
  ASSERT_EQ(logits.size(), 24u * 4);
  logits.resize(kExamples * 4);
  labels.resize(kExamples);
  const v1::TensorValue& full = rows.at("full of evaluation.fc2").tensor();
  EXPECT_THAT(std::vector<int64_t>(full.dims().begin(), full.dims().end()),
              ::testing::ElementsAre(kExamples, 4));
  EXPECT_EQ(ElementsOf<float>(full), logits);
  EXPECT_EQ(ElementsOf<int32_t>(rows.at("full of evaluation.batch(labels)").tensor()), labels);
  double squares = 0;
  for (const float x : logits) squares += static_cast<double>(x) * x;
  EXPECT_NEAR(rows.at("norm of evaluation.fc2").scalar(), std::sqrt(squares), 1e-6);
  std::vector<int64_t> confusion(16);
  for (int64_t i = 0; i < kExamples; ++i) {
    const auto row = logits.begin() + i * 4;
    ++confusion[labels[i] * 4 + (std::max_element(row, row + 4) - row)];
  }
  EXPECT_EQ(ElementsOf<int64_t>(rows.at("confusion of evaluation.fc2, batch(labels)").tensor()),
            confusion);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  const v1::IndexedValues& top = rows.at("top_k(3) of evaluation.fc2").elements();
  ASSERT_EQ(top.values_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(top.values(i), sorted[i]);
    EXPECT_EQ(logits[top.indices(i)], sorted[i]);
  }
  const v1::IndexedValues& quantiles = rows.at("quantiles(0.1, 0.5) of evaluation.fc2").elements();
  EXPECT_NEAR(quantiles.values(1), (sorted[41] + sorted[42]) / 2, 1e-6);
  int64_t counted = 0;
  for (const int64_t n : rows.at("histogram(5) of evaluation.fc2").histogram().counts()) {
    counted += n;
  }
  EXPECT_EQ(counted, kExamples * 4);
  EXPECT_EQ(rows.at("sample(6) of evaluation.fc1").elements().values_size(), 6);
  // One of each batch.
  EXPECT_EQ(ElementsOf<float>(rows.at("full of evaluation.loss").tensor()),
            InAllBatches<float>(Model(), programs, "loss", kBatches));
}

TEST(EvaluationAnswers, AreTheSameForRandomPlacements) {
  const EvaluatedBatches batches{kBatches, kBatch, kExamples};
  std::vector<std::string> log = EvaluationLog();
  std::erase(log, "loss");  // of which each rank has an addend
  Random random(5);
  // Forward passes as training's, as placements are: dropout draws the same numbers.
  Rows single;
  for (int round = 0; round < 8; ++round) {
    auto structure = BuildStructure(Registry(), Model(), /*forward_only=*/true);
    ASSERT_TRUE(structure.ok()) << structure.status();
    const int devices = round == 0 ? 1 : 3;
    const SearchSpace space(*structure, {.num_devices = devices});
    ConfigTable table(*structure);
    Placement placement(structure->nodes.size(), nullptr);
    for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, space.Draw(n, &random));
    std::vector<int64_t> kept;
    auto programs = LowerPlacement(*structure, placement, table, devices, Options("adam"), &kept);
    ASSERT_TRUE(programs.ok()) << programs.status();
    for (v1::Program& program : *programs) program.set_seed(3);
    const Rows rows = Evaluate(Model(), *programs, log, batches);
    if (round == 0) single = rows;
    ASSERT_EQ(rows.size(), log.size());
    for (const auto& [name, value] : rows) {
      const v1::ProbeValue& expected = single.at(name);
      ASSERT_EQ(value.kind_case(), expected.kind_case()) << name;
      if (value.has_scalar()) {
        EXPECT_NEAR(value.scalar(), expected.scalar(), 1e-4 * std::abs(expected.scalar())) << name;
      } else if (value.has_histogram()) {
        EXPECT_EQ(
            std::accumulate(value.histogram().counts().begin(), value.histogram().counts().end(),
                            value.histogram().outside()),
            std::accumulate(expected.histogram().counts().begin(),
                            expected.histogram().counts().end(), expected.histogram().outside()))
            << name;
      } else if (value.has_elements()) {
        for (int i = 0; i < value.elements().values_size(); ++i) {
          EXPECT_NEAR(value.elements().values(i), expected.elements().values(i), 1e-4) << name;
        }
      } else {
        EXPECT_EQ(value.tensor().data().size(), expected.tensor().data().size()) << name;
      }
    }
    EXPECT_EQ(rows.at("confusion of evaluation.fc2, batch(labels)").SerializeAsString(),
              single.at("confusion of evaluation.fc2, batch(labels)").SerializeAsString());
  }
}

// Biases and an activation, which rules fuse.
Graph Unfused() {
  GraphBuilder b(Registry(), "unfused");
  const Initializer init{Initializer::kNormal, 0.3};
  ValueId h = b.Op(
      "linear",
      {b.Input("x", DType::kF32, {-1, 12}), b.Parameter("fc1.weight", DType::kF32, {16, 12}, init)},
      {}, "product1");
  h = b.Op("add", {h, b.Parameter("fc1.bias", DType::kF32, {16}, init)}, {}, "biased1");
  h = b.Op("relu", {h}, {}, "act");
  h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {4, 16}, init)}, {}, "product2");
  h = b.Op("add", {h, b.Parameter("fc2.bias", DType::kF32, {4}, init)}, {}, "logits");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  return Bound(b.Build());
}

TEST(EvaluationAnswers, ValuesThatRewritesRemovedAreThoseOfTheModel) {
  const Graph original = Unfused();
  const auto fused = Fuse(Registry(), original);
  ASSERT_TRUE(fused.ok()) << fused.status();
  const auto evaluation = [](const Graph& graph, int devices) {
    v1::SearchOptions search;
    search.set_strategy(devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                     : v1::SearchOptions::DATA_PARALLEL);
    auto plan = MakePlan(Problem(graph, devices), search);
    EXPECT_TRUE(plan.ok()) << plan.status();
    auto lowered = LowerPlan(Registry(), graph, *plan, Options("adam"));
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    return lowered->evaluation;
  };
  const std::vector<std::string> log = {"product1",
                                        "norm(product1)",
                                        "std(product2)",
                                        "histogram(product1, 8, -1, 1)",
                                        "quantiles(product2, 0.1, 0.5)",
                                        "top_k(product2, 3)",
                                        "confusion(product2, batch(labels))",
                                        "norm(act)"};
  const EvaluatedBatches batches{kBatches, kBatch, kExamples};
  const Rows expected = Evaluate(original, evaluation(original, 1), log, batches);
  ASSERT_EQ(expected.size(), log.size());
  for (const int devices : {1, 2}) {
    const std::vector<v1::Program> programs = evaluation(*fused, devices);
    ASSERT_FALSE(ProbePoints(*fused, programs).Value("product1").ok()) << "it is no longer fused";
    const Rows rows = Evaluate(*fused, programs, log, batches, nullptr, &original);
    ASSERT_EQ(rows.size(), expected.size());
    for (const auto& [name, value] : rows) {
      SCOPED_TRACE(absl::StrCat(name, " on ", devices));
      const v1::ProbeValue& wanted = expected.at(name);
      EXPECT_NEAR(value.scalar(), wanted.scalar(), 1e-4 * std::abs(wanted.scalar()));
      EXPECT_EQ(value.histogram().SerializeAsString(), wanted.histogram().SerializeAsString());
      EXPECT_EQ(value.tensor().dims_size(), wanted.tensor().dims_size());
      ASSERT_EQ(value.elements().values_size(), wanted.elements().values_size());
      for (int i = 0; i < wanted.elements().values_size(); ++i) {
        EXPECT_NEAR(value.elements().values(i), wanted.elements().values(i), 1e-4);
      }
    }
    const auto product = ElementsOf<float>(rows.at("full of evaluation.product1").tensor());
    const auto unfused = ElementsOf<float>(expected.at("full of evaluation.product1").tensor());
    ASSERT_EQ(product.size(), kExamples * 16u);
    for (size_t i = 0; i < product.size(); ++i) EXPECT_NEAR(product[i], unfused[i], 1e-4);
    const std::string matrix = "confusion of evaluation.product2, batch(labels)";
    EXPECT_EQ(rows.at(matrix).SerializeAsString(), expected.at(matrix).SerializeAsString());
  }
}

v1::ReplayGraph GraphQuestion(const std::string& name, GraphBuilder& b) {
  v1::ReplayGraph question;
  question.set_name(name);
  auto graph = b.Build();
  EXPECT_TRUE(graph.ok()) << graph.status();
  *question.mutable_graph() = ToProto(*graph);
  return question;
}

// Graphs see examples only, whatever the plan; parameters are the evaluated ones.
TEST(EvaluationAnswers, GraphsAreEvaluatedOfEachBatchAndReduced) {
  const Graph original = Unfused();
  const auto fused = Fuse(Registry(), original);
  ASSERT_TRUE(fused.ok()) << fused.status();
  const std::vector<int64_t> last = {1};
  GraphBuilder energy(Registry(), "energy");
  {
    const ValueId x = energy.Input("product1", DType::kF32, {-1, 16});  // in no program
    const ValueId w = energy.Input("param(fc1.weight)", DType::kF32, {});
    const ValueId norm = energy.Op("reduce_sum", {energy.Op("multiply", {w, w}, {}, "ww")},
                                   {{"keepdims", false}}, "norm");
    ValueId h = energy.Op("multiply", {x, x}, {}, "xx");
    h = energy.Op("reduce_sum", {h}, {{"axes", last}, {"keepdims", false}}, "row");
    h = energy.Op("multiply", {h, norm}, {}, "scaled");
    energy.Output("rows", h);
    energy.Output("mean", energy.Op("reduce_mean", {h}, {{"keepdims", false}}, "mean"));
    energy.Output("norm", norm);
  }
  GraphBuilder of_labels(Registry(), "labels");
  of_labels.Output(
      "sum",
      of_labels.Op("reduce_sum",
                   {of_labels.Op("cast", {of_labels.Input("batch(labels)", DType::kI32, {-1})},
                                 {{"to", "f32"}}, "floats")},
                   {{"keepdims", false}}, "sum"));
  const std::vector<v1::ReplayGraph> graphs = {GraphQuestion("energy", energy),
                                               GraphQuestion("label_sums", of_labels)};
  const EvaluatedBatches batches{kBatches, kBatch, kExamples, "evaluation[book]."};
  for (const int devices : {1, 2}) {
    v1::SearchOptions search;
    search.set_strategy(devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                     : v1::SearchOptions::DATA_PARALLEL);
    auto plan = MakePlan(Problem(*fused, devices), search);
    ASSERT_TRUE(plan.ok()) << plan.status();
    auto lowered = LowerPlan(Registry(), *fused, *plan, Options("adam"));
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    const std::vector<v1::Program>& programs = lowered->evaluation;
    std::vector<std::string> notes;
    const Rows rows = Evaluate(*fused, programs, {"product1", "norm(logits)", "batch(labels)"},
                               batches, &notes, &original, graphs);
    EXPECT_THAT(notes, ::testing::IsEmpty());
    ASSERT_EQ(rows.size(), 7u);
    const auto floats = [&](const std::string& name) {
      return ElementsOf<float>(rows.at("full of evaluation[book]." + name).tensor());
    };
    const std::vector<float> weights =
        InAllBatches<float>(*fused, programs, "param(fc1.weight)", 1);
    const double norm = std::inner_product(weights.begin(), weights.end(), weights.begin(), 0.0);
    EXPECT_NEAR(floats("energy.norm").at(0), norm, 1e-4 * norm);
    const std::vector<float> products = floats("product1"), energies = floats("energy.rows");
    ASSERT_EQ(energies.size(), size_t{kExamples});
    double sum = 0;
    for (size_t i = 0; i < energies.size(); ++i) {
      const auto row = products.begin() + static_cast<std::ptrdiff_t>(i) * 16;
      const double wanted = norm * std::inner_product(row, row + 16, row, 0.0);
      EXPECT_NEAR(energies[i], wanted, 1e-4 * wanted);
      sum += energies[i];
    }
    EXPECT_NEAR(floats("energy.mean").at(0), sum / kExamples, 1e-4 * sum / kExamples);
    // A mean over batches, by their examples: of a sum, it is that of a batch.
    const std::vector<int32_t> labels =
        ElementsOf<int32_t>(rows.at("full of evaluation[book].batch(labels)").tensor());
    double weighted = 0;
    for (int64_t batch = 0; batch < kBatches; ++batch) {
      const auto begin = labels.begin() + batch * kBatch;
      const auto end = std::min(begin + kBatch, labels.end());
      weighted += static_cast<double>(end - begin) * std::accumulate(begin, end, 0.0);
    }
    EXPECT_NEAR(floats("label_sums").at(0), weighted / kExamples, 1e-4 * weighted);
  }
}

// With as many features as examples in a batch, sizes alone do not tell them apart.
TEST(EvaluationAnswers, OnlyRowsOfExamplesArePadding) {
  GraphBuilder b(Registry(), "sums");
  const ValueId x = b.Input("x", DType::kF32, {-1, kBatch});
  const ValueId w = b.Parameter("fc.weight", DType::kF32, {4, kBatch}, {Initializer::kNormal, 0.3});
  const std::vector<int64_t> swapped = {1, 0};
  const ValueId sums =
      b.Op("reduce_sum", {x}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}}, "sums");
  ValueId h = b.Op("tanh", {b.Op("transpose", {x}, {{"perm", swapped}}, "turned")}, {}, "tanh");
  h = b.Op("multiply", {b.Op("transpose", {h}, {{"perm", swapped}}, "back"), sums}, {}, "product");
  h = b.Op("linear", {h, w}, {}, "fc");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  const Graph graph = Bound(b.Build());
  v1::SearchOptions search;
  search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  auto plan = MakePlan(Problem(graph, 1), search);
  ASSERT_TRUE(plan.ok()) << plan.status();
  auto lowered = LowerPlan(Registry(), graph, *plan, Options("adam"));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  std::vector<std::string> notes;
  const Rows rows =
      Evaluate(graph, lowered->evaluation, {"fc", "sums", "turned"}, {3, kBatch, 19}, &notes);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows.at("full of evaluation.fc").tensor().dims(0), 19);
  EXPECT_EQ(rows.at("full of evaluation.sums").tensor().dims(0), 3 * kBatch);
  EXPECT_EQ(rows.at("full of evaluation.turned").tensor().dims(0), 2 * kBatch);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("evaluation.turned is of the first 16 of 19 examples"));
}

TEST(EvaluationAnswers, WhatIsTooLargeToCollectLeavesTheLastBatchOut) {
  const std::vector<v1::Program>& programs = Lowered(Model()).evaluation;
  // 2600 batches of 8 * 768 elements are more than 64 MiB.
  auto large =
      FindEvaluationProbes(Registry(), Model(), programs,
                           {ProbesOf({"norm(fc1)", "norm(fc2)", "histogram(fc1, 4, 0, 1)"}), {}},
                           {2800, kBatch, 2800 * 8 - 3}, Original);
  ASSERT_TRUE(large.ok()) << large.status();
  ASSERT_EQ(large->notes.size(), 2u);
  EXPECT_THAT(large->notes[0], HasSubstr("evaluation.norm(fc1) is of the first 22392 of 22397"));
  EXPECT_THAT(large->notes[1], HasSubstr("histogram(fc1, 4, 0, 1)"));
  // Without padding nothing is left out.
  large = FindEvaluationProbes(Registry(), Model(), programs, {ProbesOf({"norm(fc1)"}), {}},
                               {2800, kBatch, 2800 * 8}, Original);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_THAT(large->notes, ::testing::IsEmpty());
  // What needs all elements is refused with a remedy.
  large =
      FindEvaluationProbes(Registry(), Model(), programs, {ProbesOf({"quantiles(fc1, 0.5)"}), {}},
                           {100000, kBatch, 800000}, Original);
  EXPECT_EQ(large.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.status().message()), HasSubstr("histogram with bounds"));
}

TEST(EvaluationAnswers, GradientsAndAnswersThatWereNotAskedForAreRefused) {
  const std::vector<v1::Program>& programs = Lowered(Model()).evaluation;
  for (const std::string probe : {"norm(grad(fc1))", "norm(param(fc1.weight))"}) {
    const auto found = FindEvaluationProbes(Registry(), Model(), programs, {ProbesOf({probe}), {}},
                                            {1, kBatch, 8}, Original);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(found.status().message()), HasSubstr(probe));
  }
  const auto probes = FindEvaluationProbes(
      Registry(), Model(), programs, {ProbesOf({"norm(fc2)"}), {}}, {2, kBatch, 16}, Original);
  ASSERT_TRUE(probes.ok()) << probes.status();
  v1::ProbeResults results;
  ReadBatches(programs, probes->found, 1, [&](size_t, v1::ProbeResults read) {
    results = std::move(read);
    return absl::OkStatus();
  });
  EvaluationAnswers answers(&*probes);
  EXPECT_EQ(answers.Add(0, results), absl::OkStatus());
  EXPECT_EQ(answers.Add(0, results).code(), absl::StatusCode::kInternal) << "twice";
  EXPECT_EQ(answers.Add(1, results).code(), absl::StatusCode::kInternal) << "another rank";
  results.set_step(2);
  EXPECT_EQ(answers.Add(0, results).code(), absl::StatusCode::kInternal) << "another batch";
  EXPECT_EQ(answers.Finish(0).status().code(), absl::StatusCode::kInternal) << "one is missing";
}

}  // namespace
}  // namespace espalier
