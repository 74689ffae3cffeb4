#include "worker/executor/executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <thread>

#include "ops/optimizer/schedule.h"
#include "worker/collective/in_process.h"
#include "worker/executor/initialize.h"
#include "worker/executor/joint_updates.h"

namespace espalier {
namespace {

// Writes programs by hand, placing buffers one after the other.
struct ProgramWriter {
  proto::Program program;

  explicit ProgramWriter(int rank = 0, int world = 1) {
    program.set_format_version(1);
    program.set_name("test");
    program.set_rank(rank);
    program.set_world_size(world);
    program.set_seed(5);
  }
  int Buffer(const std::string& name, Dims dims, proto::BufferKind kind = proto::SCRATCH,
             proto::DataType dtype = proto::F32) {
    proto::Buffer* b = program.add_buffers();
    b->set_name(name);
    b->set_kind(kind);
    b->mutable_spec()->set_dtype(dtype);
    for (int64_t d : dims) b->mutable_spec()->add_dims(d);
    b->set_offset_bytes(program.arena_bytes());
    program.set_arena_bytes(program.arena_bytes() + (NumElements(dims) * 8 + 63) / 64 * 64);
    return program.buffers_size() - 1;
  }
  proto::Instruction* Add(const std::string& node) {
    proto::Instruction* i = program.add_instructions();
    i->set_node(node);
    return i;
  }
  void Compute(const std::string& op, std::vector<int> inputs, std::vector<int> outputs) {
    proto::ComputeInstruction* c = Add("node_" + op)->mutable_compute();
    c->set_op(op);
    for (int i : inputs) c->add_inputs(i);
    for (int o : outputs) c->add_outputs(o);
  }
  void Report(int buffer, const std::string& name) {
    proto::ReportInstruction* r = Add("loss")->mutable_report();
    r->set_buffer(buffer);
    r->set_name(name);
  }
};

class ExecutorTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Executor>> Make(const proto::Program& program,
                                                 Communicator* communicator = nullptr) {
    ExecutorOptions options;
    options.device = device_.get();
    options.communicator = communicator;
    return Executor::Create(program, options);
  }
  void ExpectRefused(const proto::Program& program, const std::string& what) {
    auto made = Make(program);
    ASSERT_FALSE(made.ok()) << what;
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << made.status();
    EXPECT_NE(std::string(made.status().message()).find(what), std::string::npos) << made.status();
  }

  std::unique_ptr<Device> device_ = NewCpuDevice({1, 1 << 26});
};

TEST_F(ExecutorTest, RunsInstructionsInOrderAndReports) {
  ProgramWriter w;
  const int a = w.Buffer("a", {2, 3}), b = w.Buffer("b", {2, 3}), c = w.Buffer("c", {2, 3}),
            s = w.Buffer("s", {});
  auto* fill = w.Add("f")->mutable_fill();
  fill->set_buffer(a);
  fill->set_value(2);
  fill = w.Add("f")->mutable_fill();
  fill->set_buffer(b);
  fill->set_value(0.5);
  w.Compute("add", {a, b}, {c});
  auto* copy = w.Add("box")->mutable_copy();  // one row of c onto one row of a, added
  copy->set_source(c);
  copy->set_destination(a);
  for (int64_t v : {0, 0}) copy->add_source_start(v);
  for (int64_t v : {1, 0}) copy->add_destination_start(v);
  for (int64_t v : {1, 3}) copy->add_size(v);
  copy->set_accumulate(true);
  w.Compute("sum_squares", {a}, {s});
  w.Report(s, "total");
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok()) << executor.status();
  for (int step = 0; step < 2; ++step) {
    auto result = (*executor)->Step(step, /*profile=*/true);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FLOAT_EQ(result->values.at("total"), 3 * 4 + 3 * 4.5 * 4.5);
    ASSERT_EQ(result->profile.size(), 6u);
    EXPECT_EQ(result->profile[2].op, "add");
    EXPECT_EQ(result->profile[2].node, "node_add");
  }
  EXPECT_GE((*executor)->measured_peak_bytes(), w.program.arena_bytes());
}

TEST_F(ExecutorTest, UpdatesFollowTheScheduleAndKeepState) {
  ProgramWriter w;
  const int p = w.Buffer("p", {3}, proto::PARAMETER_SHARD), g = w.Buffer("g", {3}),
            m = w.Buffer("p.momentum", {3}, proto::OPTIMIZER_STATE),
            hyper = w.Buffer("schedule", {2}, proto::SCHEDULE);
  w.program.mutable_buffers(p)->mutable_initializer()->set_kind(proto::Initializer::ONES);
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
  proto::Optimizer* o = w.program.mutable_optimizer();
  o->mutable_learning_rate()->set_kind(proto::LearningRateSchedule::COSINE);
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

// A region of a parameter that is kept whole is moved by itself, and is no tensor of its own.
TEST_F(ExecutorTest, AnUpdateMayMoveAStretchOfAParameter) {
  ProgramWriter w;
  const int whole = w.Buffer("p", {64}, proto::PARAMETER_SHARD), g = w.Buffer("g", {16}),
            hyper = w.Buffer("schedule", {2}, proto::SCHEDULE),
            part = w.Buffer("p#2", {16}, proto::PARAMETER_SHARD);
  w.program.mutable_buffers(whole)->mutable_initializer()->set_kind(proto::Initializer::ONES);
  proto::Buffer* stretch = w.program.mutable_buffers(part);
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

  // Elsewhere in the parameter than its region says, or of another one.
  stretch->set_offset_bytes(2 * 16 * sizeof(float));
  ExpectRefused(w.program, "share memory");
  stretch->set_offset_bytes(16 * sizeof(float));
  stretch->set_name("q");
  ExpectRefused(w.program, "share memory");
}

// Parameters of these sizes, each moved by `op` with `states` buffers; the gradient is the
// sine of the parameter. Something stands between the updates if they are `apart`.
ProgramWriter Updates(const std::vector<int64_t>& sizes, const std::string& op, int states,
                      bool apart) {
  ProgramWriter w;
  const int hyper = w.Buffer("schedule", {2}, proto::SCHEDULE), other = w.Buffer("other", {4});
  proto::LearningRateSchedule* rate = w.program.mutable_optimizer()->mutable_learning_rate();
  rate->set_kind(proto::LearningRateSchedule::CONSTANT);
  rate->set_peak(0.01);
  std::vector<int> parameters, gradients;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    parameters.push_back(w.Buffer(name, {sizes[i]}, proto::PARAMETER_SHARD));
    proto::Initializer* start = w.program.mutable_buffers(parameters[i])->mutable_initializer();
    start->set_kind(proto::Initializer::NORMAL);
    start->set_scale(1);
    gradients.push_back(w.Buffer(name + ".gradient", {sizes[i]}));
    w.Compute("sin", {parameters[i]}, {gradients[i]});
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    proto::UpdateInstruction* update = w.Add("p" + std::to_string(i))->mutable_update();
    update->set_parameter(parameters[i]);
    update->set_gradient(gradients[i]);
    for (int s = 0; s < states; ++s) {
      const std::string name = "p" + std::to_string(i) + ".state" + std::to_string(s);
      update->add_state(w.Buffer(name, {sizes[i]}, proto::OPTIMIZER_STATE));
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

TEST_F(ExecutorTest, UpdatesMadeTogetherGiveTheBitsOfUpdatesOneByOne) {
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
      EXPECT_EQ(profile->profile.size(), 10u);  // every update is told of, under its own name
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

TEST_F(ExecutorTest, UpdatesAreMadeTogetherOnlyWhereTheyAreAlikeAndApart) {
  const auto joint = [&](const proto::Program& program) {
    absl::StatusOr<CheckedProgram> checked = CheckProgram(program);
    EXPECT_TRUE(checked.ok()) << checked.status();
    ProgramMemory memory;
    EXPECT_TRUE(memory.Place(program, *checked, device_.get(), nullptr).ok());
    std::vector<int> counts = JointUpdates(program, memory);
    return std::vector<int>(counts.begin() + 3, counts.end());
  };
  using Counts = std::vector<int>;
  const ProgramWriter w = Updates({8, 8, 8}, "adam_update", 2, false);
  EXPECT_EQ(joint(w.program), (Counts{3, 0, 0}));
  EXPECT_EQ(joint(Updates({8, 8, 8}, "adam_update", 2, true).program), (Counts{1, 1, 1, 1, 1, 1}));
  {
    proto::Program other = w.program;  // another weight decay
    auto& attributes = *other.mutable_instructions(4)->mutable_update()->mutable_attributes();
    attributes["weight_decay"].set_f(0.1);
    EXPECT_EQ(joint(other), (Counts{1, 1, 1}));
  }
  {
    proto::Program other = w.program;  // the same parameter twice: the second sees the first
    other.mutable_instructions(5)->mutable_update()->set_parameter(
        other.instructions(4).update().parameter());
    EXPECT_EQ(joint(other), (Counts{2, 0, 1}));
  }
  {
    proto::Program other = w.program;  // a gradient in the memory of a parameter that moves
    other.mutable_instructions(5)->mutable_update()->set_gradient(
        other.instructions(3).update().parameter());
    EXPECT_EQ(joint(other), (Counts{2, 0, 1}));
  }
}

// A tensor leaves, something else lies in its memory, and it comes back elsewhere; beside the
// computation or with waiting, twice in a row, and from a folder.
TEST_F(ExecutorTest, WhatIsSwappedOutComesBack) {
  for (const std::string& folder : {std::string(), std::string(testing::TempDir())}) {
    device_ = NewCpuDevice({1, 1 << 26, folder});
    for (bool wait : {false, true}) {
      ProgramWriter w;
      const Dims dims = {200, 1000};
      const int p = w.Buffer("p", dims, proto::PARAMETER_SHARD), a = w.Buffer("a", dims),
                other = w.Buffer("other", dims), back = w.Buffer("back", dims),
                sum = w.Buffer("sum", {}), rest = w.Buffer("rest", {});
      w.program.mutable_buffers(other)->set_offset_bytes(w.program.buffers(a).offset_bytes());
      w.program.mutable_buffers(p)->mutable_initializer()->set_kind(proto::Initializer::NORMAL);
      w.program.mutable_buffers(p)->mutable_initializer()->set_scale(1);
      const auto swap = [&](bool out, int buffer) {
        proto::Instruction* i = w.Add(out ? "out" : "in");
        proto::SwapInstruction* s = out ? i->mutable_swap_out() : i->mutable_swap_in();
        s->set_buffer(buffer);
        s->set_host_slot(0);
        s->set_wait(wait);
      };
      w.Compute("relu", {p}, {a});
      swap(true, a);
      auto* fill = w.Add("other")->mutable_fill();  // must not reach what is on its way out
      fill->set_buffer(other);
      fill->set_value(7);
      swap(false, back);
      w.Compute("subtract", {back, p}, {other});  // must not see what has not come back
      w.Compute("sum_squares", {other}, {rest});
      w.Compute("sum_squares", {back}, {sum});
      w.Report(sum, "sum");
      w.Report(rest, "rest");
      auto executor = Make(w.program);
      ASSERT_TRUE(executor.ok()) << executor.status();
      std::vector<float> values(200 * 1000);
      ASSERT_TRUE((*executor)->ReadBuffer(p, values.data(), 4 * 200 * 1000).ok());
      double positive = 0, negative = 0;
      for (float v : values) (v > 0 ? positive : negative) += static_cast<double>(v) * v;
      for (int step = 0; step < 20; ++step) {
        auto result = (*executor)->Step(step);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_NEAR(result->values.at("sum"), positive, 1e-4 * positive);
        EXPECT_NEAR(result->values.at("rest"), negative, 1e-4 * negative);
      }
    }
  }
}

TEST_F(ExecutorTest, ANonFiniteLossNamesTheStepAndTheRemedy) {
  ProgramWriter w;
  const int loss = w.Buffer("loss", {});
  auto* fill = w.Add("loss")->mutable_fill();
  fill->set_buffer(loss);
  fill->set_value(std::numeric_limits<double>::quiet_NaN());
  w.Report(loss, "loss");
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok());
  const std::string message((*executor)->Step(17).status().message());
  EXPECT_NE(message.find("NaN at step 17"), std::string::npos) << message;
  EXPECT_NE(message.find("learning rate"), std::string::npos) << message;
}

TEST_F(ExecutorTest, RefusesProgramsThatDoNotHoldTogether) {
  auto good = [] {
    ProgramWriter w;
    const int a = w.Buffer("a", {4}), b = w.Buffer("b", {4});
    w.Compute("relu", {a}, {b});
    return w;
  };
  ASSERT_TRUE(Make(good().program).ok());
  {
    ProgramWriter w = good();
    w.program.mutable_instructions(0)->mutable_compute()->set_inputs(0, 7);
    ExpectRefused(w.program, "instruction 0 (relu of 'node_relu'): an input is buffer 7");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(1)->set_offset_bytes(w.program.arena_bytes());
    ExpectRefused(w.program, "beyond the arena");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(1)->set_offset_bytes(INT64_MAX - 63);
    ExpectRefused(w.program, "beyond the arena");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->mutable_spec()->set_dims(0, int64_t{1} << 62);
    ExpectRefused(w.program, "overflows");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->mutable_spec()->set_dims(0, -4);
    ExpectRefused(w.program, "dimension 0 is -4");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->set_kind(proto::PERSISTENT);
    w.program.mutable_buffers(1)->set_offset_bytes(0);
    ExpectRefused(w.program, "share memory");
  }
  {
    ProgramWriter w = good();
    auto* send = w.Add("s")->mutable_send();
    send->set_peer(1);
    ExpectRefused(w.program, "peer 1 of rank 0 of 1");
  }
  {
    ProgramWriter w = good();
    auto* copy = w.Add("c")->mutable_copy();
    copy->set_destination(1);
    copy->add_source_start(2);
    copy->add_destination_start(0);
    copy->add_size(3);
    ExpectRefused(w.program, "3 elements from 2 of 4");
  }
  {
    ProgramWriter w = good();
    w.Compute("no_such_operator", {0}, {1});
    ExpectRefused(w.program, "no_such_operator");
  }
  {
    ProgramWriter w = good();
    w.Add("strange");
    ExpectRefused(w.program, "instruction 1");
  }
  {
    ProgramWriter w = good();
    w.Report(0, "loss");
    ExpectRefused(w.program, "one f32");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->set_kind(proto::HOST_INPUT);
    w.Add("x")->mutable_load_batch()->set_buffer(0);
    ExpectRefused(w.program, "no dataset");
  }
  {
    ProgramWriter w = good();
    w.program.set_arena_bytes(int64_t{1} << 40);
    EXPECT_EQ(Make(w.program).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST_F(ExecutorTest, RanksExchangeMessagesAndSums) {
  auto all = NewInProcessCommunicators(2, absl::Seconds(10));
  std::vector<double> sums(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ProgramWriter w(rank, 2);
      const int a = w.Buffer("a", {4}), b = w.Buffer("b", {4}), s = w.Buffer("s", {});
      auto* fill = w.Add("a")->mutable_fill();
      fill->set_buffer(a);
      fill->set_value(rank + 1);
      auto* send = w.Add("s")->mutable_send();
      send->set_buffer(a);
      send->set_peer(1 - rank);
      send->set_tag(3);
      auto* receive = w.Add("r")->mutable_receive();
      receive->set_buffer(b);
      receive->set_peer(1 - rank);
      receive->set_tag(3);
      w.program.add_groups()->add_ranks(0);
      w.program.mutable_groups(0)->add_ranks(1);
      auto* reduce = w.Add("all")->mutable_collective();
      reduce->set_kind(proto::CollectiveInstruction::ALL_REDUCE);
      reduce->set_input(b);
      reduce->set_output(b);
      reduce->set_tag(4);
      w.Compute("sum_squares", {b}, {s});
      w.Report(s, "x");
      auto device = NewCpuDevice({1, 1 << 20});
      ExecutorOptions options;
      options.device = device.get();
      options.communicator = all[rank].get();
      auto executor = Executor::Create(w.program, options);
      ASSERT_TRUE(executor.ok()) << executor.status();
      auto result = (*executor)->Step(0);
      ASSERT_TRUE(result.ok()) << result.status();
      sums[rank] = result->values.at("x");
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(sums, (std::vector<double>{36, 36}));
}

TEST_F(ExecutorTest, SwappedBuffersComeBack) {
  ProgramWriter w;
  const int a = w.Buffer("a", {8}), s = w.Buffer("s", {});
  auto fill = [&](double value) {
    auto* f = w.Add("f")->mutable_fill();
    f->set_buffer(a);
    f->set_value(value);
  };
  fill(2);
  w.Add("out")->mutable_swap_out()->set_buffer(a);
  fill(9);
  w.Add("in")->mutable_swap_in()->set_buffer(a);
  w.Compute("sum_squares", {a}, {s});
  w.Report(s, "x");
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok()) << executor.status();
  EXPECT_EQ((*executor)->Step(0)->values.at("x"), 32);
}

TEST(Initialize, AnySplitStartsTheSame) {
  for (auto kind : {proto::Initializer::NORMAL, proto::Initializer::UNIFORM,
                    proto::Initializer::GLOROT_UNIFORM}) {
    proto::Initializer initializer;
    initializer.set_kind(kind);
    initializer.set_scale(0.02);
    const Dims whole{6, 10};
    std::vector<float> all(60), part(15);
    ASSERT_TRUE(
        Initialize(initializer, "w", 9, TensorSpec::Whole({DType::kF32, whole}), all.data()).ok());
    const TensorSpec spec{DType::kF32, {3, 5}, {3, 5}, whole};
    ASSERT_TRUE(Initialize(initializer, "w", 9, spec, part.data()).ok());
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 5; ++c) EXPECT_EQ(part[r * 5 + c], all[(r + 3) * 10 + c + 5]);
    }
    std::vector<float> other(60);
    ASSERT_TRUE(
        Initialize(initializer, "v", 9, TensorSpec::Whole({DType::kF32, whole}), other.data())
            .ok());
    EXPECT_NE(all, other);
  }
}

TEST(Initialize, NormalHasTheAskedForMoments) {
  proto::Initializer initializer;
  initializer.set_kind(proto::Initializer::NORMAL);
  initializer.set_scale(2);
  const int n = 100000;
  std::vector<float> values(n);
  ASSERT_TRUE(
      Initialize(initializer, "w", 1, TensorSpec::Whole({DType::kF32, {n}}), values.data()).ok());
  double sum = 0, squares = 0, fourth = 0;
  for (float v : values) {
    sum += v;
    squares += v * v;
    fourth += static_cast<double>(v) * v * v * v;
  }
  EXPECT_NEAR(sum / n, 0, 0.03);
  EXPECT_NEAR(squares / n, 4, 0.08);
  EXPECT_NEAR(fourth / n, 48, 3);
}

}  // namespace
}  // namespace espalier
