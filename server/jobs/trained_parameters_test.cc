#include "server/jobs/trained_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ops/graph/builder.h"
#include "ops/graph/name_pattern.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainedParametersTest : public ::testing::Test {
 protected:
  TrainedParametersTest() {
    RegisterAllOperators(registry_);
    GraphBuilder builder(registry_, "m");
    ValueId x = builder.Input("x", DType::kF32, {-1, 6, 4, 4});
    const auto channels = [&](const std::string& name, bool trainable) {
      return builder.Parameter(name, DType::kF32, {6}, {Initializer::kOnes}, trainable);
    };
    x = builder.Op("batch_norm", {x, channels("bn.weight", true), channels("bn.bias", true),
                                  channels("bn.mean", false), channels("bn.var", false),
                                  builder.Op("batch_norm_stats", {x})});
    x = builder.Op("reduce_mean", {x}, {{"axes", std::vector<int64_t>{2, 3}}});
    const ValueId w =
        builder.Parameter("fc.weight", DType::kF32, {3, 6}, {Initializer::kNormal, 1});
    const ValueId s = builder.Parameter("s", DType::kF32, {3}, {Initializer::kOnes}, false);
    builder.Output("y", builder.Op("multiply", {builder.Op("linear", {x, w}), s}));
    graph_ = *builder.Build();
  }

  // Names of the trained parameters, or the error.
  std::string Trained(const std::vector<std::string>& freeze,
                      const std::vector<std::string>& train_only) {
    v1::TrainingSpec spec;
    for (const std::string& pattern : freeze) spec.add_freeze(pattern);
    for (const std::string& pattern : train_only) spec.add_train_only(pattern);
    Graph graph = graph_;
    absl::StatusOr<std::vector<v1::ParameterUse>> uses = ChooseTrained(spec, {}, &graph);
    if (!uses.ok()) return std::string(uses.status().message());
    std::string names;
    for (const v1::ParameterUse& use : *uses) {
      EXPECT_EQ(use.trained(), graph.value(graph.FindValue(use.name())).trainable) << use.name();
      EXPECT_FALSE(use.reason().empty()) << use.name();
      if (use.trained()) names += use.name() + " ";
    }
    return names;
  }

  OpRegistry registry_;
  Graph graph_;
};

TEST_F(TrainedParametersTest, PatternsChoose) {
  EXPECT_EQ(Trained({}, {}), "bn.bias bn.weight fc.weight ");
  EXPECT_EQ(Trained({"bn.*"}, {}), "fc.weight ");
  EXPECT_EQ(Trained({"*weight"}, {}), "bn.bias ");
  EXPECT_EQ(Trained({}, {"fc.*"}), "fc.weight ");
  EXPECT_EQ(Trained({"*.bias"}, {"bn*"}), "bn.weight ");
  // A pattern keeps what is frozen, a name does not; running statistics are never trained.
  EXPECT_EQ(Trained({}, {"*"}), "bn.bias bn.weight fc.weight ");
  EXPECT_EQ(Trained({}, {"*", "s", "bn.mean"}), "bn.bias bn.weight fc.weight s ");
}

TEST_F(TrainedParametersTest, WhatCannotBeMeantIsRefused) {
  EXPECT_THAT(Trained({"conv*"}, {}),
              AllOf(HasSubstr("spec.freeze"), HasSubstr("'conv*'"), HasSubstr("'bn.bias'")));
  EXPECT_THAT(Trained({}, {"fc"}), AllOf(HasSubstr("spec.train_only"), HasSubstr("'fc'")));
  EXPECT_THAT(Trained({"*"}, {}),
              AllOf(HasSubstr("no parameter"), HasSubstr("name in `train_only` what")));
  EXPECT_THAT(Trained({}, {"bn.mean"}), HasSubstr("no parameter"));
}

TEST_F(TrainedParametersTest, DoubtsAreNamedUnlessTheUserHasDecided) {
  ImportReport report;
  report.initializers["s"] = {{DType::kF32, {3}}, false, "small", true};
  report.initializers["fc.weight"] = {{DType::kF32, {3, 6}}, true, "odd", true};
  Graph graph = graph_;
  v1::TrainingSpec spec;
  EXPECT_THAT(DoubtsOf(*ChooseTrained(spec, report, &graph), report),
              AllOf(HasSubstr("buffers: 'fc.weight'"), HasSubstr("parameters: 's'")));
  spec.add_train_only("*");
  spec.add_train_only("s");
  spec.add_freeze("fc.*");
  EXPECT_EQ(DoubtsOf(*ChooseTrained(spec, report, &graph), report), "");
}

TEST_F(TrainedParametersTest, Counts) {
  Graph graph = graph_;
  const v1::TrainedParameters count = CountTrained(*ChooseTrained({}, {}, &graph));
  EXPECT_EQ(count.tensors(), 3);
  EXPECT_EQ(count.elements(), 6 + 6 + 18);
  EXPECT_EQ(count.other_tensors(), 3);
  EXPECT_EQ(count.other_elements(), 6 + 6 + 3);
}

TEST(MatchesPatternTest, StarsStandForAnyCharacters) {
  for (const auto& [pattern, name] :
       std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                        {"*", ""},
                                                        {"a", "a"},
                                                        {"*a", "bca"},
                                                        {"a*c", "abbc"},
                                                        {"**b*", "ab"},
                                                        {"*.0.*.bias", "m.0.1.0.fc.bias"}}) {
    EXPECT_TRUE(MatchesPattern(pattern, name)) << pattern << " " << name;
  }
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{
           {"", "a"}, {"a", ""}, {"a", "ab"}, {"*a", "ab"}, {"a*c", "acb"}, {"*ab*ab", "xaby"}}) {
    EXPECT_FALSE(MatchesPattern(pattern, name)) << pattern << " " << name;
  }
}

}  // namespace
}  // namespace espalier
