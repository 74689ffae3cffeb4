// What an exported file leaves out: losses, metrics, and what only they read.
#include "ops/onnx/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/graph/builder.h"
#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
Names NamesOf(const T& values) {
  Names names;
  for (const auto& value : values) names.push_back(value.name());
  return names;
}

// A linear layer, whose result is no output yet.
class ExportTest : public ::testing::Test {
 protected:
  ValueId Scaled(ValueId x, double by, const std::string& name = "") {
    return b_.Op("multiply_scalar", {x}, {{"value", by}}, name);
  }
  ValueId Labels() {
    if (labels_ == kNoValue) labels_ = b_.Input("labels", DType::kI32, {-1});
    return labels_;
  }
  ValueId CrossEntropy(const std::string& name) {
    const ValueId weights =
        b_.Constant(name + ".class_weights", DType::kF32, {3}, Bytes(Floats{1, 2, 3}));
    return b_.Op("sparse_categorical_crossentropy", {logits_, Labels(), weights}, {}, name);
  }
  // By basic operators, with a penalty on a parameter of its own.
  ValueId ByHand(const std::string& name) {
    const ValueId target = b_.Input("target", DType::kF32, {-1, 3});
    const ValueId scale = b_.Parameter("scale", DType::kF32, {3}, {Initializer::kOnes});
    const ValueId difference = b_.Op("multiply", {b_.Op("subtract", {logits_, target}), scale});
    const ValueId mean = b_.Op("reduce_mean", {b_.Op("multiply", {difference, difference})});
    return b_.Op("add", {mean, Scaled(b_.Op("reduce_sum", {scale}), 0.01)}, {}, name);
  }

  absl::StatusOr<onnx::GraphProto> Export(const ExportOptions& options = {}) {
    absl::StatusOr<Graph> graph = b_.Build();
    if (!graph.ok()) return graph.status();
    for (size_t v = 0; v < graph->values().size(); ++v) {
      Value& value = graph->mutable_value(static_cast<ValueId>(v));
      if (value.kind == ValueKind::kParameter) {
        value.constant.resize(static_cast<size_t>(value.type.bytes()));
      }
    }
    const absl::StatusOr<std::string> bytes = ExportOnnx(Operators(), *graph, options);
    if (!bytes.ok()) return bytes.status();
    onnx::ModelProto model;
    EXPECT_TRUE(model.ParseFromString(*bytes));
    return model.graph();
  }

  void ExpectTheLayerAlone() {
    const absl::StatusOr<onnx::GraphProto> file = Export();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(NamesOf(file->output()), ElementsAre("logits"));
    EXPECT_THAT(NamesOf(file->input()), ElementsAre("x"));
    EXPECT_THAT(NamesOf(file->initializer()), ElementsAre("w"));
    EXPECT_EQ(NamesOf(file->node()).front(), "fc") << file->DebugString();
  }

  GraphBuilder b_{Operators(), "layer"};
  const ValueId x_ = b_.Input("x", DType::kF32, {-1, 4});
  const ValueId w_ = b_.Parameter("w", DType::kF32, {3, 4}, {Initializer::kZeros});
  const ValueId logits_ = b_.Op("linear", {x_, w_}, {}, "fc");
  ValueId labels_ = kNoValue;
};

TEST_F(ExportTest, AWeightedLossIsNoPartOfTheFile) {
  b_.Output("logits", logits_);
  b_.Output("loss", Scaled(CrossEntropy("loss"), 0.5, "loss.logits.weighted"));
  ExpectTheLayerAlone();
}

TEST_F(ExportTest, AWeightedSumOfLossesIsNoPartOfTheFile) {
  const ValueId one = CrossEntropy("loss.logits"), other = CrossEntropy("loss.other");
  b_.Output("logits", logits_);
  b_.Output("loss", b_.Op("add_n", {one, Scaled(other, 0.3)}, {}, "loss"));
  b_.Output("loss.logits", one);
  b_.Output("loss.other", other);
  ExpectTheLayerAlone();
}

TEST_F(ExportTest, WhatIsComputedFromAMetricIsNoPartOfTheFile) {
  b_.Output("loss", CrossEntropy("loss"));
  b_.Output("accuracy", b_.Op("accuracy", {logits_, Labels()}, {}, "accuracy"));
  b_.Output("percent", Scaled(b_.Op("accuracy", {logits_, Labels()}), 100));
  b_.Output("logits", logits_);
  ExpectTheLayerAlone();
}

TEST_F(ExportTest, ALossOfBasicOperatorsIsNoPartOfTheFile) {
  b_.Output("loss", ByHand("loss"));
  b_.Output("logits", logits_);
  ExpectTheLayerAlone();
}

TEST_F(ExportTest, WhatIsAskedForIsExported) {
  b_.Output("logits", logits_);
  b_.Output("loss", ByHand("loss"));
  ExportOptions options;
  options.outputs = {"loss"};
  const absl::StatusOr<onnx::GraphProto> file = Export(options);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(NamesOf(file->output()), ElementsAre("loss"));
  EXPECT_THAT(NamesOf(file->input()), ElementsAre("x", "target"));
}

TEST_F(ExportTest, AGraphOfOneOutputMayCallItLoss) {
  b_.Output("loss", ByHand("loss"));
  const absl::StatusOr<onnx::GraphProto> file = Export();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(NamesOf(file->output()), ElementsAre("loss"));
}

TEST_F(ExportTest, AGraphOfLossesAloneIsRefused) {
  b_.Output("loss", Scaled(CrossEntropy("loss"), 0.5));
  b_.Output("accuracy", b_.Op("accuracy", {logits_, Labels()}));
  const absl::StatusOr<onnx::GraphProto> file = Export();
  EXPECT_TRUE(absl::IsInvalidArgument(file.status())) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("(loss, accuracy)"));
}

}  // namespace
}  // namespace espalier::import_fixture
