// Graphs as questions of an evaluation: what is reduced over its batches, how, and what is refused.
#include "server/replay/evaluation_fragments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "server/replay/program_questions.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSize = 4;

const OpRegistry& OperatorsOfGraphs() {
  static const auto* const operators = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *operators;
}

// Of a batch: scores f32[4, 3], with a row for each example; labels i32[4]; turned f32[3, 4], whose
// examples are in dimension 1; w f32[3], a parameter.
absl::StatusOr<EvaluationInput> InputOf(const ProbeExpression& source) {
  const std::string name = TargetsToString(source);
  if (name == "scores") return EvaluationInput{{DType::kF32, {4, 3}}, BatchLayout::kRows, {{8, 3}}};
  if (name == "labels") return EvaluationInput{{DType::kI32, {4}}, BatchLayout::kRows, {{8}}};
  if (name == "turned") {
    return EvaluationInput{{DType::kF32, {3, 4}}, BatchLayout::kNotKnown, {{3, 8}}};
  }
  if (name == "param(w)") return EvaluationInput{{DType::kF32, {3}}, BatchLayout::kNone, {{3}}};
  return absl::NotFoundError("there is none");
}

class GraphQuestions {
 public:
  GraphBuilder& Add(const std::string& name) {
    names_.push_back(name);
    return *builders_.emplace_back(std::make_unique<GraphBuilder>(OperatorsOfGraphs(), name));
  }

  absl::StatusOr<EvaluationFragments> Make(const EvaluatedBatches& batches) {
    // A builder builds once.
    for (auto i = static_cast<size_t>(spec_.graphs_size()); i < names_.size(); ++i) {
      auto built = builders_[i]->Build();
      EXPECT_TRUE(built.ok()) << built.status();
      v1::ReplayGraph* graph = spec_.add_graphs();
      graph->set_name(names_[i]);
      *graph->mutable_graph() = ToProto(*built);
    }
    auto asked = ParseQuestions(OperatorsOfGraphs(), spec_);
    EXPECT_TRUE(asked.ok()) << asked.status();
    return EvaluationFragments::Make(OperatorsOfGraphs(), asked->fragments, InputOf, batches);
  }

  std::string Refusal(const EvaluatedBatches& batches) {
    const absl::Status status = Make(batches).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<GraphBuilder>> builders_;
  v1::ReplaySpec spec_;
};

template <typename T>
v1::TensorValue TensorOf(v1::DataType dtype, const Dims& dims, const std::vector<T>& elements) {
  v1::TensorValue tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_dims()->Assign(dims.begin(), dims.end());
  tensor.set_data(elements.data(), elements.size() * sizeof(T));
  return tensor;
}

template <typename T>
std::vector<T> ElementsIn(const v1::TensorValue& tensor) {
  std::vector<T> elements(tensor.data().size() / sizeof(T));
  std::memcpy(elements.data(), tensor.data().data(), tensor.data().size());
  return elements;
}

// Batch b has the scores 12 b, 12 b + 1, ..., and the labels 4 b, 4 b + 1, ...
std::map<std::string, v1::TensorValue> BatchOf(int64_t b) {
  std::vector<float> scores(12), turned(12), w = {1, 2, 3};
  std::vector<int32_t> labels(4);
  std::iota(scores.begin(), scores.end(), static_cast<float>(12 * b));
  std::iota(turned.begin(), turned.end(), static_cast<float>(b));
  std::iota(labels.begin(), labels.end(), static_cast<int32_t>(4 * b));
  return {{"scores", TensorOf(v1::F32, {4, 3}, scores)},
          {"labels", TensorOf(v1::I32, {4}, labels)},
          {"turned", TensorOf(v1::F32, {3, 4}, turned)},
          {"param(w)", TensorOf(v1::F32, {3}, w)}};
}

std::map<std::string, v1::TensorValue> Answers(const EvaluationFragments& fragments,
                                               int64_t batches) {
  EvaluatedFragments evaluated(&fragments);
  for (int64_t b = 0; b < batches; ++b) {
    const absl::Status added = evaluated.Add(b, BatchOf(b));
    EXPECT_TRUE(added.ok()) << added;
  }
  const auto finished = evaluated.Finish();
  const auto declared = fragments.answers();
  EXPECT_EQ(finished.size(), declared.size());
  for (size_t i = 0; i < finished.size(); ++i) {
    EXPECT_EQ(finished[i].first, declared[i].first);
    EXPECT_EQ(FromProto(finished[i].second.dtype()), declared[i].second.dtype);
    const auto& dims = finished[i].second.dims();
    EXPECT_EQ(Dims(dims.begin(), dims.end()), declared[i].second.dims);
  }
  return {finished.begin(), finished.end()};
}

const Attributes& Whole() {
  static const auto* const attributes = new Attributes{{"keepdims", false}};
  return *attributes;
}

TEST(EvaluationFragments, RowsFollowEachOtherMeansAreOfExamplesAndCountsAddUp) {
  GraphQuestions asked;
  const std::vector<int64_t> columns = {1}, examples = {0};
  {
    GraphBuilder& b = asked.Add("scores");
    const ValueId x = b.Input("scores", DType::kF32, {-1, 3});
    b.Output("row", b.Op("reduce_sum", {x}, {{"axes", columns}, {"keepdims", false}}, "row"));
    b.Output("mean", b.Op("reduce_mean", {x}, Whole(), "mean"));
    b.Output("columns",
             b.Op("reduce_mean", {x}, {{"axes", examples}, {"keepdims", false}}, "columns"));
    b.Output("weighted",
             b.Op("multiply", {x, b.Input("param(w)", DType::kF32, {3})}, {}, "weighted"));
  }
  {
    GraphBuilder& b = asked.Add("labels");
    const ValueId labels = b.Input("labels", DType::kI32, {-1});
    b.Output("sum", b.Op("reduce_sum", {labels}, Whole(), "sum"));
  }
  // 3 batches, of which the last has 2 examples and padding.
  const auto made = asked.Make({3, kSize, 10, ""});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->without_last(), IsEmpty());
  EXPECT_EQ(made->sources().size(), 3u);
  const auto answers = Answers(*made, 3);
  std::vector<float> rows, weighted;
  double sum = 0;
  for (int i = 0; i < 30; ++i) {
    if (i % 3 == 0) rows.push_back(static_cast<float>(3 * i + 3));
    weighted.push_back(static_cast<float>(i * (i % 3 + 1)));
    sum += i;
  }
  EXPECT_EQ(ElementsIn<float>(answers.at("scores.row")), rows);
  EXPECT_EQ(ElementsIn<float>(answers.at("scores.weighted")), weighted);
  EXPECT_THAT(ElementsIn<float>(answers.at("scores.mean")), ElementsAre(FloatNear(sum / 30, 1e-5)));
  EXPECT_THAT(ElementsIn<float>(answers.at("scores.columns")),
              ElementsAre(FloatNear(13.5, 1e-5), FloatNear(14.5, 1e-5), FloatNear(15.5, 1e-5)));
  EXPECT_THAT(ElementsIn<int64_t>(answers.at("labels")), ElementsAre(45));
}

TEST(EvaluationFragments, WhatCannotLeavePaddingOutIsOfTheOtherBatches) {
  GraphQuestions asked;
  GraphBuilder& fixed = asked.Add("fixed");
  fixed.Output(
      "y", fixed.Op("reduce_mean", {fixed.Input("scores", DType::kF32, {4, 3})}, Whole(), "mean"));
  GraphBuilder& turned = asked.Add("turned");
  turned.Output(
      "y", turned.Op("reduce_mean", {turned.Input("turned", DType::kF32, {})}, Whole(), "mean"));
  GraphBuilder& open = asked.Add("open");
  open.Output("y",
              open.Op("reduce_mean", {open.Input("scores", DType::kF32, {})}, Whole(), "mean"));
  auto made = asked.Make({2, kSize, 7, ""});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->without_last(), ElementsAre("fixed", "turned"));
  auto answers = Answers(*made, 2);
  EXPECT_THAT(ElementsIn<float>(answers.at("fixed")), ElementsAre(FloatNear(5.5, 1e-5)));
  EXPECT_THAT(ElementsIn<float>(answers.at("open")), ElementsAre(FloatNear(10, 1e-5)));
  // Without padding there is nothing to leave out.
  made = asked.Make({2, kSize, 8, ""});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->without_last(), IsEmpty());
  answers = Answers(*made, 2);
  EXPECT_THAT(ElementsIn<float>(answers.at("fixed")), ElementsAre(FloatNear(11.5, 1e-5)));
  EXPECT_THAT(asked.Refusal({1, kSize, 3, ""}), HasSubstr("do not fill a batch of 4"));
}

TEST(EvaluationFragments, AnswersThatDependOnTheBatchOtherwiseAreRefused) {
  {
    GraphQuestions asked;
    GraphBuilder& b = asked.Add("gram");
    const ValueId x = b.Input("scores", DType::kF32, {-1, 3});
    b.Output("y", b.Op("matmul", {x, x}, {{"transpose_b", true}}, "gram"));
    EXPECT_THAT(asked.Refusal({2, kSize, 8, ""}),
                HasSubstr("graph 'gram': it is f32[4, 4] for 4 examples and f32[8, 8] for 8"));
  }
  {
    GraphQuestions asked;
    GraphBuilder& b = asked.Add("fixed");
    b.Output("y", b.Op("tanh", {b.Input("scores", DType::kF32, {4, 3})}, {}, "tanh"));
    EXPECT_THAT(asked.Refusal({2, kSize, 8, ""}), HasSubstr("leave the first dimension"));
  }
  {
    GraphQuestions asked;
    GraphBuilder& b = asked.Add("large");
    b.Output("y", b.Op("tanh", {b.Input("scores", DType::kF32, {})}, {}, "tanh"));
    EXPECT_THAT(asked.Refusal({int64_t{1} << 26, kSize, int64_t{1} << 28, ""}),
                HasSubstr("let the graph reduce them"));
  }
}

TEST(EvaluationFragments, BatchesComeInOrder) {
  GraphQuestions asked;
  GraphBuilder& b = asked.Add("rows");
  b.Output("y", b.Op("tanh", {b.Input("scores", DType::kF32, {})}, {}, "tanh"));
  const auto made = asked.Make({2, kSize, 8, ""});
  ASSERT_TRUE(made.ok()) << made.status();
  EvaluatedFragments evaluated(&*made);
  EXPECT_EQ(evaluated.Add(1, BatchOf(1)).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace espalier
