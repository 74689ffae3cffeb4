#include <cstring>
#include <map>

#include "ops/optimizer/lr_schedule.h"
#include "ops/program/unchanged_parameters.h"
#include "worker/executor/executor_fixture.h"
#include "worker/executor/multi_tensor_ops.h"

namespace espalier {
namespace {

TEST_F(ExecutorTest, UpdatesFollowTheScheduleAndKeepState) {
  ProgramWriter w;
  const int p = w.Buffer("p", {3}, v1::PARAMETER_SHARD), g = w.Buffer("g", {3}),
            m = w.Buffer("p.momentum", {3}, v1::OPTIMIZER_STATE),
            hyper = w.Buffer("schedule", {2}, v1::SCHEDULE);
  w.program.mutable_buffers(p)->mutable_initializer()->set_kind(v1::Initializer::ONES);
  auto* fill = w.Add("g")->mutable_fill();
  fill->set_buffer(g);
  fill->set_value(1);
  auto* update = w.Add("p")->mutable_update();
  update->set_parameter(p);
  update->set_gradient(g);
  update->add_state(m);
  update->set_scale(-1);
  update->set_hyper(hyper);
  update->set_op("sgd_update");
  (*update->mutable_attributes())["momentum"].set_f(0.5);
  v1::Optimizer* o = w.program.mutable_optimizer();
  o->mutable_learning_rate()->set_kind(v1::LearningRateSchedule::COSINE);
  o->mutable_learning_rate()->set_peak(0.1);
  o->mutable_learning_rate()->set_warmup_steps(2);
  o->mutable_learning_rate()->set_total_steps(10);
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok()) << executor.status();
  float expected = 1, momentum = 0;
  for (int step = 0; step < 4; ++step) {
    auto result = (*executor)->Step(step);
    ASSERT_TRUE(result.ok()) << result.status();
    momentum = step == 0 ? 1 : 0.5f * momentum + 1;
    expected -= static_cast<float>(LearningRate(o->learning_rate(), step)) * momentum;
    float values[3];
    ASSERT_TRUE((*executor)->ReadBuffer(p, values, 12).ok());
    EXPECT_NEAR(values[2], expected, 1e-6);
  }
}

// An update of a region of a whole parameter; the region is not a tensor of its own.

TEST_F(ExecutorTest, UpdateMayCoverARangeOfAParameter) {
  ProgramWriter w;
  const int whole = w.Buffer("p", {64}, v1::PARAMETER_SHARD), g = w.Buffer("g", {16}),
            hyper = w.Buffer("schedule", {2}, v1::SCHEDULE),
            part = w.Buffer("p#2", {16}, v1::PARAMETER_SHARD);
  w.program.mutable_buffers(whole)->mutable_initializer()->set_kind(v1::Initializer::ONES);
  v1::Buffer* stretch = w.program.mutable_buffers(part);
  stretch->mutable_spec()->add_offset(16);
  stretch->mutable_spec()->add_global(64);
  stretch->set_offset_bytes(16 * sizeof(float));
  auto* fill = w.Add("g")->mutable_fill();
  fill->set_buffer(g);
  fill->set_value(1);
  auto* update = w.Add("p")->mutable_update();
  update->set_parameter(part);
  update->set_gradient(g);
  update->set_scale(-1);
  update->set_hyper(hyper);
  update->set_op("sgd_update");
  update->add_state(-1);
  w.program.mutable_optimizer()->mutable_learning_rate()->set_peak(0.5);
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok()) << executor.status();
  ASSERT_TRUE((*executor)->Step(0).ok());
  float values[64];
  ASSERT_TRUE((*executor)->ReadBuffer(whole, values, sizeof(values)).ok());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(values[i], i >= 16 && i < 32 ? 0.5f : 1.0f) << i;
  EXPECT_TRUE((*executor)->is_alias(part));
  EXPECT_FALSE((*executor)->is_alias(whole));
  EXPECT_EQ((*executor)->tensor_name(part), "p");
  EXPECT_EQ(UnchangedParameters(w.program), std::vector<bool>(w.program.buffers_size(), false));

  // At another offset than its region, or in another parameter.
  stretch->set_offset_bytes(2 * 16 * sizeof(float));
  ExpectRefused(w.program, "share memory");
  stretch->set_offset_bytes(16 * sizeof(float));
  stretch->set_name("q");
  ExpectRefused(w.program, "share memory");
}

// Running statistics move though they are only inputs.
TEST_F(ExecutorTest, ParametersThatStepsDoNotChangeAreTold) {
  ProgramWriter w;
  const auto parameter = [&](const std::string& name, Dims dims) {
    const int buffer = w.Buffer(name, std::move(dims), v1::PARAMETER_SHARD);
    w.program.mutable_buffers(buffer)->mutable_initializer()->set_kind(v1::Initializer::ONES);
    return buffer;
  };
  const int frozen = parameter("frozen", {4, 3}), scale = parameter("scale", {3}),
            bias = parameter("bias", {3}), mean = parameter("mean", {3}),
            variance = parameter("variance", {3}), trained = parameter("trained", {3}),
            hyper = w.Buffer("schedule", {2}, v1::SCHEDULE), x = w.Buffer("x", {4, 3}),
            stats = w.Buffer("stats", {2, 3}), y = w.Buffer("y", {4, 3}),
            gradient = w.Buffer("gradient", {3});
  w.Compute("sin", {frozen}, {x});
  w.Compute("batch_norm_stats", {x}, {stats});
  w.Compute("batch_norm", {x, scale, bias, mean, variance, stats}, {y});
  for (v1::Instruction& instruction : *w.program.mutable_instructions()) {
    if (instruction.compute().op() == "sin") continue;
    auto& attributes = *instruction.mutable_compute()->mutable_attributes();
    attributes["count"].set_i(4);
    if (instruction.compute().op() == "batch_norm") attributes["momentum"].set_f(0.1);
  }
  v1::FillInstruction* fill = w.Add("gradient")->mutable_fill();
  fill->set_buffer(gradient);
  fill->set_value(1);
  v1::UpdateInstruction* update = w.Add("trained")->mutable_update();
  update->set_parameter(trained);
  update->set_gradient(gradient);
  update->set_scale(-1);
  update->set_hyper(hyper);
  update->set_op("sgd_update");
  update->add_state(-1);
  w.program.mutable_optimizer()->mutable_learning_rate()->set_peak(0.5);
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok()) << executor.status();
  ASSERT_TRUE((*executor)->Step(0).ok());
  const std::vector<bool> unchanged = UnchangedParameters(w.program);
  for (const int i : {frozen, scale, bias, mean, variance, trained}) {
    float value = 0;
    ASSERT_TRUE((*executor)->ReadBuffer(i, &value, sizeof(value)).ok());
    EXPECT_EQ(unchanged[i], value == 1) << w.program.buffers(i).name();
  }
  EXPECT_TRUE(unchanged[frozen]);
  EXPECT_FALSE(unchanged[mean] || unchanged[variance] || unchanged[trained]);
  EXPECT_FALSE(unchanged[x] || unchanged[hyper]) << "no parameters";
}

// Parameters of these sizes, each updated by `op` with `states` buffers; the gradient is the sine
// of the parameter. Other instructions separate the updates if `apart`.
ProgramWriter Updates(const std::vector<int64_t>& sizes, const std::string& op, int states,
                      bool apart) {
  ProgramWriter w;
  const int hyper = w.Buffer("schedule", {2}, v1::SCHEDULE), other = w.Buffer("other", {4});
  v1::LearningRateSchedule* rate = w.program.mutable_optimizer()->mutable_learning_rate();
  rate->set_kind(v1::LearningRateSchedule::CONSTANT);
  rate->set_peak(0.01);
  std::vector<int> parameters, gradients;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    parameters.push_back(w.Buffer(name, {sizes[i]}, v1::PARAMETER_SHARD));
    v1::Initializer* start = w.program.mutable_buffers(parameters[i])->mutable_initializer();
    start->set_kind(v1::Initializer::NORMAL);
    start->set_scale(1);
    gradients.push_back(w.Buffer(name + ".gradient", {sizes[i]}));
    w.Compute("sin", {parameters[i]}, {gradients[i]});
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    v1::UpdateInstruction* update = w.Add("p" + std::to_string(i))->mutable_update();
    update->set_parameter(parameters[i]);
    update->set_gradient(gradients[i]);
    for (int s = 0; s < states; ++s) {
      const std::string name = "p" + std::to_string(i) + ".state" + std::to_string(s);
      update->add_state(w.Buffer(name, {sizes[i]}, v1::OPTIMIZER_STATE));
    }
    update->set_scale(-1);
    update->set_hyper(hyper);
    update->set_op(op);
    if (op == "sgd_update" || op == "rmsprop_update") {
      (*update->mutable_attributes())["momentum"].set_f(0.5);
    }
    if (op == "rmsprop_update") (*update->mutable_attributes())["centered"].set_b(true);
    if (apart) w.Add("other")->mutable_fill()->set_buffer(other);
  }
  return w;
}

TEST_F(ExecutorTest, FusedUpdatesGiveTheSameBits) {
  const std::vector<int64_t> sizes = {3, 2, 70001, 1, 33000};
  const std::map<std::string, int> states = {{"sgd_update", 1},
                                             {"adam_update", 2},
                                             {"adagrad_update", 1},
                                             {"lion_update", 1},
                                             {"rmsprop_update", 3}};
  for (const auto& [op, count] : states) {
    auto together = Make(Updates(sizes, op, count, false).program);
    auto apart = Make(Updates(sizes, op, count, true).program);
    ASSERT_TRUE(together.ok()) << together.status();
    ASSERT_TRUE(apart.ok()) << apart.status();
    std::vector<float> start(70001), a(70001), b(70001);
    const int large = (*together)->FindBuffer("p2");
    ASSERT_TRUE((*together)->ReadBuffer(large, start.data(), 4 * 70001).ok());
    for (int step = 0; step < 3; ++step) {
      auto profile = (*together)->Step(step, /*profile=*/true);
      ASSERT_TRUE(profile.ok()) << profile.status();
      EXPECT_EQ(profile->profile.size(), 10u);  // each update is listed by its own name
      EXPECT_EQ(profile->profile.back().node, "p4");
      ASSERT_TRUE((*apart)->Step(step).ok());
    }
    for (int i = 0; i < (*together)->num_buffers(); ++i) {
      const std::string& name = (*together)->buffer(i).name();
      const int64_t bytes = (*together)->spec(i).bytes();
      ASSERT_TRUE((*together)->ReadBuffer(i, a.data(), bytes).ok());
      ASSERT_TRUE((*apart)->ReadBuffer((*apart)->FindBuffer(name), b.data(), bytes).ok());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), bytes), 0) << op << " " << name;
    }
    ASSERT_TRUE((*together)->ReadBuffer(large, a.data(), 4 * 70001).ok());
    EXPECT_NE(std::memcmp(a.data(), start.data(), 4 * 70001), 0) << op << " moved nothing";
  }
}

TEST_F(ExecutorTest, FusesOnlySimilarDisjointUpdates) {
  const auto groups = [&](const v1::Program& program) {
    absl::StatusOr<CheckedProgram> checked = CheckProgram(program);
    EXPECT_TRUE(checked.ok()) << checked.status();
    ProgramMemory memory;
    EXPECT_TRUE(memory.Place(program, *checked, device_.get(), nullptr).ok());
    std::vector<int> counts = MultiTensorGroups(
        program, memory, FindSwapDependencies(program, memory), device_->kernels());
    return std::vector<int>(counts.begin() + 3, counts.end());
  };
  using Counts = std::vector<int>;
  const ProgramWriter w = Updates({8, 8, 8}, "adam_update", 2, false);
  EXPECT_EQ(groups(w.program), (Counts{3, 0, 0}));
  EXPECT_EQ(groups(Updates({8, 8, 8}, "adam_update", 2, true).program), (Counts{1, 1, 1, 1, 1, 1}));
  {
    v1::Program other = w.program;  // another weight decay
    auto& attributes = *other.mutable_instructions(4)->mutable_update()->mutable_attributes();
    attributes["weight_decay"].set_f(0.1);
    EXPECT_EQ(groups(other), (Counts{1, 1, 1}));
  }
  {
    v1::Program other = w.program;  // the same parameter twice: the second sees the first
    other.mutable_instructions(5)->mutable_update()->set_parameter(
        other.instructions(4).update().parameter());
    EXPECT_EQ(groups(other), (Counts{2, 0, 1}));
  }
  {
    v1::Program other = w.program;  // a gradient in the memory of a parameter that moves
    other.mutable_instructions(5)->mutable_update()->set_gradient(
        other.instructions(3).update().parameter());
    EXPECT_EQ(groups(other), (Counts{2, 0, 1}));
  }
}

}  // namespace
}  // namespace espalier
