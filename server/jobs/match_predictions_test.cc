#include "server/jobs/match_predictions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/cpu/register_all.h"
#include "ops/graph/autodiff.h"
#include "ops/graph/builder.h"
#include "ops/kernel/kernel.h"
#include "ops/operators/register_all.h"
#include "ops/rewrite/proof.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBatch = 4, kClasses = 3;
const Dims kShape = {-1, kClasses};

// Adds operators behind the logits of a model.
using Tail = std::function<ValueId(GraphBuilder&, ValueId logits)>;

Attributes Along(int64_t axis) { return {{"axis", axis}}; }

ValueId None(GraphBuilder&, ValueId x) { return x; }
ValueId Softmax(GraphBuilder& b, ValueId x) { return b.Op("softmax", {x}, Along(-1)); }
ValueId LogSoftmax(GraphBuilder& b, ValueId x) { return b.Op("log_softmax", {x}, Along(1)); }
ValueId Sigmoid(GraphBuilder& b, ValueId x) { return b.Op("sigmoid", {x}); }
ValueId Reshaped(GraphBuilder& b, ValueId x, Dims shape) {
  return b.Op("reshape", {x}, {{"shape", std::move(shape)}});
}

class MatchPredictionsTest : public ::testing::Test {
 protected:
  MatchPredictionsTest() {
    RegisterAllOperators(registry_);
    RegisterCpuKernels(kernels_);
  }

  // A linear model, `tail`, and a loss or metric `op` as output "value". Labels are 0 or 1, targets
  // any numbers.
  Graph Model(const std::string& op, const Tail& tail, Attributes attributes = {}) {
    GraphBuilder b(registry_, "m");
    const ValueId x = b.Input("x", DType::kF32, {-1, 6});
    const ValueId w = b.Parameter("w", DType::kF32, {kClasses, 6}, {Initializer::kNormal, 1});
    const ValueId prediction = tail(b, b.Op("linear", {x, w}, {}, "logits"));
    const OpDef* def = registry_.Find(op);
    const ValueId labels = def->inputs[1].name == "labels" ? b.Input("labels", DType::kI64, {-1})
                                                           : b.Input("target", DType::kF32, kShape);
    b.Output("value", b.Op(op, {prediction, labels}, std::move(attributes), "value"));
    return *b.Build();
  }

  // The model after MatchPredictions, bound; its notes are kept.
  Graph Matched(Graph graph) {
    auto notes = MatchPredictions(registry_, kBatch, {}, &graph);
    EXPECT_TRUE(notes.ok()) << notes.status();
    if (notes.ok()) notes_ = *notes;
    return Bound(std::move(graph));
  }
  Graph Bound(Graph graph) {
    const absl::Status status = BindAndInfer(registry_, kBatch, &graph);
    EXPECT_TRUE(status.ok()) << status;
    return graph;
  }
  std::string Refusal(Graph graph) {
    const absl::Status status = MatchPredictions(registry_, kBatch, {}, &graph).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  void ExpectSame(const Graph& expected, const Graph& found) {
    EXPECT_EQ(CheckSame(registry_, kernels_, expected, found, 3), absl::OkStatus());
  }
  float ValueOf(const Graph& graph) {
    auto bytes = Evaluate(kernels_, graph, 3);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    float value = NAN;
    if (bytes.ok()) std::memcpy(&value, (*bytes)[graph.FindOutput("value")].data(), sizeof(value));
    return value;
  }

  OpRegistry registry_;
  KernelRegistry kernels_;
  std::vector<std::string> notes_;
};

TEST_F(MatchPredictionsTest, ASoftmaxBeforeALossOfClassesCountsOnce) {
  const std::map<std::string, Tail> tails = {
      {"softmax", Softmax},
      {"log_softmax", LogSoftmax},
      {"log of softmax", [](auto& b, ValueId x) { return b.Op("log", {Softmax(b, x)}); }},
      {"exp of log_softmax", [](auto& b, ValueId x) { return b.Op("exp", {LogSoftmax(b, x)}); }},
      {"views",
       [](auto& b, ValueId x) {
         const ValueId y = Softmax(b, Reshaped(b, x, {0, 1, kClasses}));
         const ValueId z = b.Op("squeeze", {b.Op("identity", {y})}, {{"axes", Dims{1}}});
         return Reshaped(b, b.Op("cast", {z}, {{"to", std::string("f32")}}), {-1, kClasses});
       }},
      {"written out",
       [](auto& b, ValueId x) {
         const ValueId e = b.Op("exp", {x});
         const ValueId sum = b.Op("reduce_sum", {e}, {{"axes", Dims{1}}, {"keepdims", true}});
         return b.Op("divide", {e, sum});
       }},
      {"the last of a sequence",
       [](auto& b, ValueId x) {
         const ValueId two = b.Op("concat", {x, x}, Along(1));
         const ValueId y = Softmax(b, Reshaped(b, two, {0, 2, kClasses}));
         const ValueId last =
             b.Op("slice", {y}, {{"axes", Dims{1}}, {"starts", Dims{-1}}, {"ends", Dims{2}}});
         return Reshaped(b, last, {-1, kClasses});
       }},
  };
  for (const auto& [name, tail] : tails) {
    for (const char* loss : {"sparse_categorical_crossentropy", "categorical_crossentropy"}) {
      SCOPED_TRACE(name + " " + loss);
      ExpectSame(Bound(Model(loss, None)), Matched(Model(loss, tail)));
      EXPECT_THAT(notes_, ::testing::ElementsAre(HasSubstr(loss)));
    }
    SCOPED_TRACE(name);
    ExpectSame(Bound(Model("negative_log_likelihood", LogSoftmax)),
               Matched(Model("negative_log_likelihood", tail)));
    EXPECT_NEAR(ValueOf(Matched(Model("perplexity", tail))),
                ValueOf(Bound(Model("perplexity", None))), 1e-5);
    EXPECT_EQ(ValueOf(Matched(Model("accuracy", tail))), ValueOf(Bound(Model("accuracy", None))));
  }
}

TEST_F(MatchPredictionsTest, LogitsBehindAStoppedGradientStayBehindIt) {
  const Tail stopped = [](auto& b, ValueId x) { return b.Op("stop_gradient", {Softmax(b, x)}); };
  Graph matched = Matched(Model("sparse_categorical_crossentropy", stopped));
  EXPECT_NEAR(ValueOf(matched), ValueOf(Bound(Model("sparse_categorical_crossentropy", None))),
              1e-5);
  matched.outputs[0].first = "loss";
  EXPECT_THAT(std::string(Differentiate(registry_, matched).status().message()),
              HasSubstr("depends on no trainable parameter"));
}

TEST_F(MatchPredictionsTest, ASigmoidBeforeABinaryLossCountsOnce) {
  const Tail viewed = [](auto& b, ValueId x) {
    return Reshaped(b, Sigmoid(b, Reshaped(b, x, {0, kClasses, 1})), {0, kClasses});
  };
  for (const Tail& tail : {Tail(Sigmoid), viewed}) {
    ExpectSame(Bound(Model("binary_crossentropy", None)),
               Matched(Model("binary_crossentropy", tail)));
    EXPECT_THAT(notes_, ::testing::ElementsAre(HasSubstr("sigmoid")));
  }
  // Probabilities that are no sigmoid's result.
  ExpectSame(Bound(Model("binary_crossentropy", Softmax, {{"from_logits", false}})),
             Matched(Model("binary_crossentropy", Softmax)));
}

TEST_F(MatchPredictionsTest, LogitsAreLeftAlone) {
  for (const char* op : {"sparse_categorical_crossentropy", "categorical_crossentropy",
                         "binary_crossentropy", "perplexity", "mean_squared_error"}) {
    SCOPED_TRACE(op);
    for (const Tail& tail : {Tail(None), Tail([](auto&b, ValueId x) { return b.Op("tanh", {x}); }),
                             Tail([](auto&b, ValueId x) { return b.Op("relu", {x}); })}) {
      EXPECT_EQ(ValueOf(Matched(Model(op, tail))), ValueOf(Bound(Model(op, tail))));
      EXPECT_THAT(notes_, IsEmpty());
    }
  }
  EXPECT_EQ(ValueOf(Matched(Model("mean_squared_error", Softmax))),
            ValueOf(Bound(Model("mean_squared_error", Softmax))));
}

TEST_F(MatchPredictionsTest, ProbabilitiesWithoutLogitsAreTakenAsProbabilities) {
  const Tail mean = [](auto& b, ValueId x) {
    const ValueId other = b.Op("multiply_scalar", {x}, {{"value", -2.0}});
    const ValueId sum = b.Op("add", {Softmax(b, x), Softmax(b, other)});
    return b.Op("multiply_scalar", {sum}, {{"value", 0.5}});
  };
  const Tail log_of_mean = [&](auto& b, ValueId x) { return b.Op("log", {mean(b, x)}); };
  ExpectSame(Bound(Model("categorical_crossentropy", mean, {{"from_logits", false}})),
             Matched(Model("categorical_crossentropy", mean)));
  ExpectSame(Bound(Model("sparse_categorical_crossentropy", log_of_mean)),
             Matched(Model("sparse_categorical_crossentropy", mean)));
  ExpectSame(Bound(Model("negative_log_likelihood", log_of_mean)),
             Matched(Model("negative_log_likelihood", mean)));
}

// The mean over views or a sequence, pooled and interpolated maps of classes.
TEST_F(MatchPredictionsTest, MeansOfDistributionsAreDistributions) {
  const auto two_views = [](GraphBuilder& b, ValueId x) {
    const ValueId other = b.Op("multiply_scalar", {x}, {{"value", -2.0}});
    return Softmax(b, Reshaped(b, b.Op("concat", {x, other}, Along(1)), {0, 2, kClasses}));
  };
  // [batch, classes, 1, 2]
  const auto image = [&](GraphBuilder& b, ValueId x) {
    const ValueId by_class = b.Op("transpose", {two_views(b, x)}, {{"perm", Dims{0, 2, 1}}});
    return Reshaped(b, by_class, {0, kClasses, 1, 2});
  };
  const std::map<std::string, Tail> tails = {
      {"mean",
       [&](auto& b, ValueId x) {
         return b.Op("reduce_mean", {two_views(b, x)}, {{"axes", Dims{1}}, {"keepdims", false}});
       }},
      {"average pool",
       [&](auto& b, ValueId x) {
         const ValueId y = b.Op("pool2d", {image(b, x)},
                                {{"kind", std::string("average")}, {"kernel", Dims{1, 2}}});
         return Reshaped(b, y, {0, kClasses});
       }},
      {"interpolation",
       [&](auto& b, ValueId x) {
         const ValueId y =
             b.Op("resize", {image(b, x)},
                  {{"scales", std::vector<double>{1, 1, 1, 0.5}}, {"mode", std::string("linear")}});
         return Reshaped(b, y, {0, kClasses});
       }},
      {"a part",
       [&](auto& b, ValueId x) {
         const ValueId y =
             b.OpN("split", 2, {two_views(b, x)}, {{"axis", int64_t{1}}, {"sizes", Dims{1, 1}}})[1];
         return b.Op("squeeze", {y}, {{"axes", Dims{1}}});
       }},
  };
  for (const auto& [name, tail] : tails) {
    SCOPED_TRACE(name);
    const Tail log = [&tail = tail](auto& b, ValueId x) { return b.Op("log", {tail(b, x)}); };
    ExpectSame(Bound(Model("sparse_categorical_crossentropy", log)),
               Matched(Model("sparse_categorical_crossentropy", tail)));
    EXPECT_THAT(notes_, ::testing::ElementsAre(HasSubstr("taken as probabilities")));
  }
}

TEST_F(MatchPredictionsTest, NumbersFrom0To1AreProbabilitiesOfABinaryLoss) {
  const auto half = [](GraphBuilder& b, ValueId y) {
    return b.Op("multiply_scalar", {b.Op("add_scalar", {y}, {{"value", 1.0}})}, {{"value", 0.5}});
  };
  const auto not_x = [](GraphBuilder& b, ValueId x) { return Sigmoid(b, b.Op("neg", {x})); };
  const std::map<std::string, Tail> tails = {
      {"hard_sigmoid", [](auto& b, ValueId x) { return b.Op("hard_sigmoid", {x}); }},
      {"tanh", [&](auto& b, ValueId x) { return half(b, b.Op("tanh", {x})); }},
      {"erf", [&](auto& b, ValueId x) { return half(b, b.Op("erf", {x})); }},
      {"written out",
       [](auto& b, ValueId x) {
         const ValueId e = b.Op("exp", {b.Op("neg", {x})});
         return b.Op("reciprocal", {b.Op("add_scalar", {e}, {{"value", 1.0}})});
       }},
      {"of exp",
       [](auto& b, ValueId x) {
         const ValueId e = b.Op("exp", {x});
         return b.Op("neg", {b.Op("subtract_scalar", {Sigmoid(b, e)}, {{"value", 1.0}})});
       }},
      {"the larger",
       [&](auto& b, ValueId x) {
         return b.Op("maximum", {Sigmoid(b, x), not_x(b, x)});
       }},
      {"the largest",
       [&](auto& b, ValueId x) {
         const ValueId both = b.Op("concat", {Sigmoid(b, x), not_x(b, x)}, Along(1));
         return b.Op("reduce_max", {Reshaped(b, both, {0, 2, kClasses})}, {{"axes", Dims{1}}});
       }},
  };
  for (const auto& [name, tail] : tails) {
    SCOPED_TRACE(name);
    ExpectSame(Bound(Model("binary_crossentropy", tail, {{"from_logits", false}})),
               Matched(Model("binary_crossentropy", tail)));
    EXPECT_THAT(notes_, ::testing::ElementsAre(HasSubstr("taken as probabilities")));
    Matched(Model("binary_crossentropy", tail, {{"from_logits", false}}));
    EXPECT_THAT(notes_, ::testing::IsEmpty()) << "the user has said it";
  }
}

TEST_F(MatchPredictionsTest, TheLossOfASaturatedSoftmaxIsExact) {
  const Tail large = [](auto& b, ValueId x) {
    return Softmax(b, b.Op("multiply_scalar", {x}, {{"value", 400.0}}));
  };
  const float loss = ValueOf(Matched(Model("sparse_categorical_crossentropy", large)));
  EXPECT_GT(loss, 100) << "the logarithm of an f32 probability ends at 87";
  EXPECT_LT(loss, 2000);
}

TEST_F(MatchPredictionsTest, WhatTheGraphDoesNotSayIsAsked) {
  EXPECT_THAT(Refusal(Model("sparse_categorical_crossentropy", Sigmoid)),
              AllOf(HasSubstr("sigmoid"), HasSubstr("from_logits=false")));
  EXPECT_THAT(Refusal(Model("negative_log_likelihood", Sigmoid)), HasSubstr("from_logits=true"));
  EXPECT_THAT(Refusal(Model("binary_crossentropy", LogSoftmax)), HasSubstr("logarithms"));
  const Tail over_examples = [](auto& b, ValueId x) { return b.Op("softmax", {x}, Along(0)); };
  EXPECT_THAT(Refusal(Model("sparse_categorical_crossentropy", over_examples)),
              HasSubstr("dimension 0"));
}

TEST_F(MatchPredictionsTest, AnExplicitFromLogitsHolds) {
  const Attributes yes = {{"from_logits", true}}, no = {{"from_logits", false}};
  // Applied twice, as the user says.
  for (const char* loss : {"sparse_categorical_crossentropy", "categorical_crossentropy"}) {
    const Tail twice = [](auto& b, ValueId x) { return Softmax(b, Softmax(b, x)); };
    const Graph expected = Matched(Model(loss, twice));
    ExpectSame(expected, Matched(Model(loss, Softmax, yes)));
    EXPECT_THAT(notes_, ::testing::ElementsAre(HasSubstr("twice; once if you say")));
  }
  ExpectSame(Matched(Model("binary_crossentropy",
                           [](auto& b, ValueId x) { return Sigmoid(b, Sigmoid(b, x)); })),
             Matched(Model("binary_crossentropy", Sigmoid, yes)));
  // A sigmoid's results for several classes: Keras normalizes them.
  const Tail normalized = [](auto& b, ValueId x) {
    const ValueId y = Sigmoid(b, x);
    return b.Op("divide", {y, b.Op("reduce_sum", {y}, {{"axes", Dims{1}}, {"keepdims", true}})});
  };
  ExpectSame(Matched(Model("sparse_categorical_crossentropy", normalized)),
             Matched(Model("sparse_categorical_crossentropy", Sigmoid, no)));
  ExpectSame(Bound(Model("negative_log_likelihood", LogSoftmax)),
             Matched(Model("negative_log_likelihood", None, yes)));
}

TEST_F(MatchPredictionsTest, BinaryAccuracyFollowsTheLoss) {
  const auto threshold = [&](const Tail& tail, const std::string& loss, Attributes of_loss,
                             Attributes of_metric = {}) {
    GraphBuilder b(registry_, "m");
    const ValueId x = b.Input("x", DType::kF32, kShape);
    const ValueId target = b.Input("target", DType::kF32, kShape);
    const ValueId y = tail(b, x);
    b.Output("accuracy", b.Op("binary_accuracy", {y, target}, std::move(of_metric), "accuracy"));
    b.Output("loss", b.Op(loss, {y, target}, std::move(of_loss), "loss"));
    const Graph graph = Matched(*b.Build());
    const Node& node = graph.node(graph.value(graph.FindOutput("accuracy")).producer);
    return std::pair(graph.value(node.inputs[0]).name, node.attributes.Float("threshold", -1));
  };
  const char* bce = "binary_crossentropy";
  EXPECT_EQ(threshold(None, bce, {}), std::pair(std::string("x"), 0.0));
  EXPECT_EQ(threshold(Sigmoid, bce, {}), std::pair(std::string("x"), 0.0));
  EXPECT_EQ(threshold(None, bce, {{"from_logits", false}}), std::pair(std::string("x"), 0.5));
  EXPECT_EQ(threshold(None, "mean_squared_error", {}), std::pair(std::string("x"), 0.5));
  EXPECT_EQ(threshold(Sigmoid, "mean_squared_error", {}), std::pair(std::string("x"), 0.0));
  EXPECT_EQ(threshold(None, bce, {}, {{"threshold", 0.3}}), std::pair(std::string("x"), 0.3));
}

}  // namespace
}  // namespace espalier
