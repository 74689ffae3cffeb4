#include "ops/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "ops/optimizer/lr_schedule.h"

namespace espalier {
namespace {

using Schedule = v1::LearningRateSchedule;

const OpRegistry& Registry() {
  static const OpRegistry* registry = [] {
    auto* r = new OpRegistry;
    RegisterAllOperators(*r);
    return r;
  }();
  return *registry;
}

v1::Optimizer Named(const std::string& name) {
  v1::Optimizer optimizer;
  optimizer.set_name(name);
  return optimizer;
}

TEST(ChooseUpdateTest, JobOverridesAttributesOfVariant) {
  v1::Optimizer optimizer = Named("adamw");
  auto choice = ChooseUpdate(Registry(), optimizer);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->def->name, "adam_update");
  EXPECT_TRUE(choice->attributes.Bool("decoupled"));
  EXPECT_EQ(choice->attributes.Float("weight_decay"), 0.01);
  EXPECT_EQ(choice->attributes.Float("beta2"), 0.999);
  (*optimizer.mutable_attributes())["weight_decay"].set_f(0.5);
  choice = ChooseUpdate(Registry(), optimizer);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->attributes.Float("weight_decay"), 0.5);
}

TEST(ChooseUpdateTest, ErrorsSayWhatIsAccepted) {
  const auto message = [](const v1::Optimizer& optimizer) {
    return std::string(ChooseUpdate(Registry(), optimizer).status().message());
  };
  EXPECT_NE(message(Named("")).find("adafactor, adagrad, adam, adamw, lion, rmsprop, sgd"),
            std::string::npos)
      << message(Named(""));
  v1::Optimizer optimizer = Named("sgd");
  (*optimizer.mutable_attributes())["beta1"].set_f(0.9);
  EXPECT_NE(message(optimizer).find("no attribute 'beta1'"), std::string::npos);
  optimizer = Named("sgd");
  (*optimizer.mutable_attributes())["nesterov"].set_b(true);
  EXPECT_NE(message(optimizer).find("momentum above 0"), std::string::npos);
  optimizer = Named("adam");
  (*optimizer.mutable_attributes())["beta1"].set_f(1.5);
  EXPECT_NE(message(optimizer).find("'beta1'"), std::string::npos);
}

TEST(ChooseUpdateTest, StatesFollowTheAttributes) {
  v1::Optimizer sgd = Named("sgd");
  auto choice = ChooseUpdate(Registry(), sgd);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->States({3, 4})[0].name, "");
  (*sgd.mutable_attributes())["momentum"].set_f(0.9);
  choice = ChooseUpdate(Registry(), sgd);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->States({3, 4})[0].name, "momentum");
  choice = ChooseUpdate(Registry(), Named("adafactor"));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->States({3, 4, 5})[1].dims, (Dims{20}));
  EXPECT_EQ(choice->States({3})[2].name, "adafactor_squares");
}

TEST(PenaltyTest, RegularizersAddUpByName) {
  v1::Optimizer optimizer = Named("sgd");
  v1::Regularizer* all = optimizer.add_regularizers();
  all->set_l2(0.1);
  v1::Regularizer* some = optimizer.add_regularizers();
  some->set_parameter("fc*");
  some->set_l1(0.2);
  some->set_l2(0.3);
  EXPECT_DOUBLE_EQ(PenaltyOf(optimizer, "fc1.weight").l2, 0.4);
  EXPECT_DOUBLE_EQ(PenaltyOf(optimizer, "fc1.weight").l1, 0.2);
  EXPECT_DOUBLE_EQ(PenaltyOf(optimizer, "conv").l2, 0.1);
  EXPECT_DOUBLE_EQ(PenaltyOf(optimizer, "conv").l1, 0);
}

// Formulas of PyTorch's torch.optim.lr_scheduler; numbers without a formula were computed with it
// (1.13).
TEST(LearningRateTest, CosineWarmsUpThenFallsToTheFloor) {
  Schedule s;
  s.set_peak(1);
  EXPECT_EQ(LearningRate(s, 1000), 1);
  s.set_kind(Schedule::COSINE);
  s.set_warmup_steps(10);
  s.set_total_steps(110);
  s.set_floor(0.2);
  EXPECT_DOUBLE_EQ(LearningRate(s, 0), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(s, 9), 1);
  EXPECT_DOUBLE_EQ(LearningRate(s, 10), 1);
  EXPECT_DOUBLE_EQ(LearningRate(s, 60), 0.6);
  EXPECT_DOUBLE_EQ(LearningRate(s, 110), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(s, 100000), 0.2);
}

TEST(LearningRateTest, StepIsStepLR) {
  Schedule s;
  s.set_kind(Schedule::STEP);
  s.set_peak(0.8);
  s.set_step_size(3);
  s.set_gamma(0.5);
  for (int step = 0; step < 12; ++step) {
    EXPECT_DOUBLE_EQ(LearningRate(s, step), 0.8 * std::pow(0.5, step / 3));
  }
  s.set_floor(0.15);
  EXPECT_DOUBLE_EQ(LearningRate(s, 100), 0.15);
}

TEST(LearningRateTest, LinearIsLinearLR) {
  Schedule s;
  s.set_kind(Schedule::LINEAR);
  s.set_peak(0.5);
  s.set_floor(0.1);  // end_factor 0.2
  s.set_total_steps(8);
  for (int step = 0; step < 12; ++step) {
    EXPECT_NEAR(LearningRate(s, step), 0.5 * (1 + (0.2 - 1) * std::min(step, 8) / 8.0), 1e-15);
  }
}

TEST(LearningRateTest, PolynomialIsPolynomialLR) {
  Schedule s;
  s.set_kind(Schedule::POLYNOMIAL);
  s.set_peak(0.5);
  s.set_power(2);
  s.set_total_steps(8);
  for (int step = 0; step < 12; ++step) {
    EXPECT_NEAR(LearningRate(s, step), 0.5 * std::pow(1 - std::min(step, 8) / 8.0, 2), 1e-15);
  }
}

TEST(LearningRateTest, OneCycleIsOneCycleLR) {
  Schedule s;
  s.set_kind(Schedule::ONE_CYCLE);
  s.set_peak(1);
  s.set_total_steps(20);
  s.set_floor(4e-6);  // initial / final_div_factor
  // max_lr=1, total_steps=20, pct_start=0.3: the peak at step 5.
  EXPECT_NEAR(LearningRate(s, 0), 0.04, 1e-15);
  EXPECT_NEAR(LearningRate(s, 5), 1, 1e-15);
  EXPECT_NEAR(LearningRate(s, 2), 0.04 + 0.96 * (1 - std::cos(std::numbers::pi * 0.4)) / 2, 1e-15);
  EXPECT_NEAR(LearningRate(s, 12), 4e-6 + (1 - 4e-6) / 2, 1e-15);
  EXPECT_NEAR(LearningRate(s, 19), 4e-6, 1e-15);
  EXPECT_NEAR(LearningRate(s, 30), 4e-6, 1e-15);
}

TEST(LearningRateTest, WarmUpPrecedesTheOthersToo) {
  for (Schedule::Kind kind : {Schedule::CONSTANT, Schedule::LINEAR, Schedule::POLYNOMIAL}) {
    Schedule s;
    s.set_kind(kind);
    s.set_peak(1);
    s.set_power(1);
    s.set_warmup_steps(4);
    s.set_total_steps(14);
    EXPECT_DOUBLE_EQ(LearningRate(s, 0), 0.25);
    EXPECT_DOUBLE_EQ(LearningRate(s, 3), 1);
    EXPECT_DOUBLE_EQ(LearningRate(s, 4), 1);
    EXPECT_DOUBLE_EQ(LearningRate(s, 9), kind == Schedule::CONSTANT ? 1 : 0.5);
  }
}

TEST(LearningRateTest, AWarmUpMayStartWithAnyRate) {
  // optax.warmup_cosine_decay_schedule(0, 1, 4, 14, 0.5).
  Schedule s;
  s.set_kind(Schedule::COSINE);
  s.set_peak(1);
  s.set_floor(0.5);
  s.set_warmup_steps(4);
  s.set_warmup_from(0);
  s.set_total_steps(14);
  EXPECT_EQ(CheckSchedule(s), absl::OkStatus());
  EXPECT_DOUBLE_EQ(LearningRate(s, 0), 0);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(s, 4), 1);
  EXPECT_DOUBLE_EQ(LearningRate(s, 9), 0.75);
  EXPECT_DOUBLE_EQ(LearningRate(s, 20), 0.5);
  s.set_warmup_from(2);  // down to the peak
  EXPECT_DOUBLE_EQ(LearningRate(s, 2), 1.5);
  s.set_warmup_steps(0);
  EXPECT_NE(std::string(CheckSchedule(s).message()).find("warmup_steps"), std::string::npos);
}

TEST(LearningRateTest, ATableHoldsItsLastRate) {
  Schedule s;
  s.set_kind(Schedule::TABLE);
  EXPECT_NE(std::string(CheckSchedule(s).message()).find("values"), std::string::npos);
  for (const double rate : {0.0, 0.5, 0.25}) s.add_values(rate);
  EXPECT_EQ(CheckSchedule(s), absl::OkStatus());
  EXPECT_DOUBLE_EQ(LearningRate(s, 0), 0);
  EXPECT_DOUBLE_EQ(LearningRate(s, 2), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1000), 0.25);
  s.add_values(-1);
  EXPECT_NE(std::string(CheckSchedule(s).message()).find("values[3]"), std::string::npos);
  s.mutable_values()->RemoveLast();
  s.set_kind(Schedule::COSINE);
  EXPECT_NE(std::string(CheckSchedule(s).message()).find("none for other kinds"),
            std::string::npos);
}

TEST(GroupsTest, TheFirstGroupThatNamesAParameterCounts) {
  v1::Optimizer optimizer = Named("adamw");
  v1::ParameterGroup* biases = optimizer.add_groups();
  biases->add_parameters("*.bias");
  biases->set_weight_decay(0);
  v1::ParameterGroup* head = optimizer.add_groups();
  head->add_parameters("head.*");
  head->set_learning_rate_scale(0.5);
  ASSERT_EQ(CheckOptimizer(Registry(), optimizer), absl::OkStatus());
  const UpdateChoice choice = *ChooseUpdate(Registry(), optimizer);
  const auto decay = [&](const char* name) {
    return UpdateAttributes(choice, optimizer, name).Float("weight_decay");
  };
  EXPECT_EQ(decay("head.bias"), 0);
  EXPECT_EQ(decay("head.weight"), 0.01);
  EXPECT_EQ(decay("fc.weight"), 0.01);
  EXPECT_EQ(LearningRateScale(optimizer, "head.bias"), 1);
  EXPECT_EQ(LearningRateScale(optimizer, "head.weight"), 0.5);

  GraphBuilder b(Registry(), "g");
  b.Parameter("head.weight", DType::kF32, {2}, {Initializer::kOnes});
  b.Parameter("fc.bias", DType::kF32, {2}, {Initializer::kOnes}, /*trainable=*/false);
  const std::string unmatched(CheckGroups(*b.Build(), optimizer).message());
  EXPECT_NE(unmatched.find("groups[0].parameters has '*.bias'"), std::string::npos) << unmatched;
}

TEST(GroupsTest, BadOptionsAreNamed) {
  const auto refusal = [](const std::string& name,
                          const std::function<void(v1::ParameterGroup*)>& set) {
    v1::Optimizer optimizer = Named(name);
    set(optimizer.add_groups());
    return std::string(CheckOptimizer(Registry(), optimizer).message());
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(refusal("sgd", [](auto*) {}), "groups[0].parameters is empty"));
  EXPECT_TRUE(has(refusal("sgd", [](auto* g) { g->add_parameters("*"), g->set_weight_decay(-1); }),
                  "groups[0].weight_decay is -1"));
  EXPECT_TRUE(
      has(refusal("lion", [](auto* g) { g->add_parameters("*"), g->set_learning_rate_scale(NAN); }),
          "groups[0].learning_rate_scale is nan"));
}

TEST(CheckScheduleTest, NamesTheField) {
  Schedule s;
  s.set_kind(Schedule::STEP);
  EXPECT_NE(std::string(CheckSchedule(s).message()).find("step_size"), std::string::npos);
  s.set_step_size(1);
  EXPECT_NE(std::string(CheckSchedule(s).message()).find("gamma"), std::string::npos);
  s.set_gamma(0.5);
  EXPECT_TRUE(CheckSchedule(s).ok());
  s.set_peak(std::nan(""));
  EXPECT_NE(std::string(CheckSchedule(s).message()).find("peak"), std::string::npos);
}

}  // namespace
}  // namespace espalier
