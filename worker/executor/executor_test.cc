#include <limits>
#include <thread>

#include "worker/collective/in_process_communicator.h"
#include "worker/executor/executor_fixture.h"

namespace espalier {
namespace {

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

TEST_F(ExecutorTest, SwappedOutBufferIsRestored) {
  for (const std::string& folder : {std::string(), std::string(testing::TempDir())}) {
    device_ = NewCpuDevice({1, 1 << 26, folder});
    for (bool wait : {false, true}) {
      ProgramWriter w;
      const Dims dims = {200, 1000};
      const int p = w.Buffer("p", dims, v1::PARAMETER_SHARD), a = w.Buffer("a", dims),
                other = w.Buffer("other", dims), back = w.Buffer("back", dims),
                sum = w.Buffer("sum", {}), rest = w.Buffer("rest", {});
      w.program.mutable_buffers(other)->set_offset_bytes(w.program.buffers(a).offset_bytes());
      w.program.mutable_buffers(p)->mutable_initializer()->set_kind(v1::Initializer::NORMAL);
      w.program.mutable_buffers(p)->mutable_initializer()->set_scale(1);
      const auto swap = [&](bool out, int buffer) {
        v1::Instruction* i = w.Add(out ? "out" : "in");
        v1::SwapInstruction* s = out ? i->mutable_swap_out() : i->mutable_swap_in();
        s->set_buffer(buffer);
        s->set_host_slot(0);
        s->set_wait(wait);
      };
      w.Compute("relu", {p}, {a});
      swap(true, a);
      auto* fill = w.Add("other")->mutable_fill();  // must not overwrite a swap_out in flight
      fill->set_buffer(other);
      fill->set_value(7);
      swap(false, back);
      w.Compute("subtract", {back, p}, {other});  // must not read before the swap_in ends
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
      reduce->set_kind(v1::CollectiveInstruction::ALL_REDUCE);
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

// Passes of a session: forward, store or accumulate, update.
TEST_F(ExecutorTest, PartsRunOnTheirOwn) {
  ProgramWriter w;
  const int p = w.Buffer("p", {3}, v1::PARAMETER_SHARD), a = w.Buffer("a", {3}),
            g = w.Buffer("p.grad", {3}, v1::OPTIMIZER_STATE), s = w.Buffer("s", {}),
            hyper = w.Buffer("schedule", {2}, v1::SCHEDULE);
  auto* fill = w.Add("f")->mutable_fill();
  fill->set_buffer(a);
  fill->set_value(2);
  w.Compute("sum_squares", {a}, {s});
  w.Report(s, "loss");
  for (const bool accumulate : {false, true}) {
    auto* copy = w.Add("p")->mutable_copy();
    copy->set_source(a);
    copy->set_destination(g);
    copy->add_source_start(0);
    copy->add_destination_start(0);
    copy->add_size(3);
    copy->set_accumulate(accumulate);
  }
  for (int i = 0; i < 2; ++i) {
    auto* update = w.Add("p")->mutable_update();
    update->set_parameter(p);
    update->set_gradient(g);
    update->set_scale(-1);
    update->set_hyper(hyper);
    update->set_op("sgd_update");
    update->add_state(-1);
  }
  w.program.mutable_optimizer()->mutable_learning_rate()->set_peak(0.5);
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok()) << executor.status();
  const auto run = [&](int begin, int end, const PassOptions& options = {}) {
    auto result = (*executor)->RunPart(begin, end, options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : StepResult();
  };
  const auto read = [&](int buffer) {
    float values[3];
    EXPECT_TRUE((*executor)->ReadBuffer(buffer, values, sizeof(values)).ok());
    return values[2];
  };
  EXPECT_EQ(run(0, 3).values.at("loss"), 12);
  EXPECT_TRUE(run(0, 3, {.reports = false}).values.empty());
  run(3, 4);
  EXPECT_EQ(read(g), 2);
  run(4, 5);
  run(4, 5);
  EXPECT_EQ(read(g), 6);
  EXPECT_EQ(read(p), 0);
  EXPECT_EQ(run(5, 6).learning_rate, 0.5);
  EXPECT_EQ(read(p), -3);
  EXPECT_EQ(run(5, 6, {.learning_rate = 0.25}).learning_rate, 0.25);
  EXPECT_EQ(read(p), -4.5);
  for (const auto& [begin, end] : {std::pair{-1, 2}, {3, 2}, {0, 8}}) {
    EXPECT_EQ((*executor)->RunPart(begin, end, {}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ExecutorTest, PartMayReportALossThatIsNotFinite) {
  ProgramWriter w;
  const int s = w.Buffer("s", {});
  auto* fill = w.Add("f")->mutable_fill();
  fill->set_buffer(s);
  fill->set_value(std::numeric_limits<double>::infinity());
  w.Report(s, "loss");
  auto executor = Make(w.program);
  ASSERT_TRUE(executor.ok()) << executor.status();
  EXPECT_FALSE((*executor)->RunPart(0, 2, {}).ok());
  auto result = (*executor)->RunPart(0, 2, {.allow_not_finite = true});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->values.at("loss"), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace espalier
