#include "worker/trainer/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/faulty_file_system.h"
#include "storage/folder_checkpoint_store.h"
#include "worker/executor/executor_fixture.h"
#include "worker/trainer/checkpoint_observer.h"
#include "worker/trainer/evaluation_observer.h"
#include "worker/trainer/timing_observer.h"

namespace espalier {
namespace {

using Calls = std::vector<std::string>;

// Logs its calls and fails at one of them.
class LoggingObserver : public StepObserver {
 public:
  LoggingObserver(std::string name, Calls* calls, std::string fail_at = "")
      : name_(std::move(name)), calls_(calls), fail_at_(std::move(fail_at)) {}
  absl::string_view name() const override { return name_; }
  absl::Status OnRunBegin(TrainingRun&) override { return Log("run"); }
  absl::Status OnStepBegin(TrainingRun&, int64_t step, bool*) override {
    return Log(absl::StrCat("begin ", step));
  }
  absl::Status OnStepEnd(TrainingRun&, int64_t step, StepReports&) override {
    return Log(absl::StrCat("end ", step));
  }
  absl::Status OnStepReported(TrainingRun&, int64_t step, const StepReports&) override {
    return Log(absl::StrCat("reported ", step));
  }
  absl::Status OnCheckpoint(TrainingRun&, const v1::CheckpointShard& shard) override {
    return Log(absl::StrCat("checkpoint ", shard.steps_done()));
  }
  absl::Status OnEvaluation(TrainingRun&, const v1::StepReport& report) override {
    return Log(absl::StrCat("evaluation ", report.step()));
  }
  absl::Status OnRunEnd(TrainingRun&) override { return Log("run end"); }
  void OnRunFailed(TrainingRun&, const absl::Status& status) override {
    calls_->push_back(absl::StrCat(name_, " failed: ", status.message()));
  }

 private:
  absl::Status Log(const std::string& call) {
    calls_->push_back(absl::StrCat(name_, " ", call));
    return call == fail_at_ ? absl::AbortedError("planted") : absl::OkStatus();
  }
  const std::string name_;
  Calls* const calls_;
  const std::string fail_at_;
};

class TensorObserver : public StepObserver {
 public:
  explicit TensorObserver(ReportedTensor tensor) : tensor_(std::move(tensor)) {}
  absl::string_view name() const override { return "tensor"; }
  absl::Status OnStepEnd(TrainingRun&, int64_t, StepReports& reports) override {
    reports.tensors["probe"] = tensor_;
    return absl::OkStatus();
  }

 private:
  const ReportedTensor tensor_;
};

class TrainerTest : public ExecutorTest {
 protected:
  // Reports "x" = 6 * value^2.
  std::unique_ptr<Executor> Constant(double value, Device* device) {
    ProgramWriter w;
    const int a = w.Buffer("a", {2, 3}), s = w.Buffer("s", {});
    auto* fill = w.Add("f")->mutable_fill();
    fill->set_buffer(a);
    fill->set_value(value);
    w.Compute("sum_squares", {a}, {s});
    w.Report(s, "x");
    ExecutorOptions options;
    options.device = device;
    auto made = Executor::Create(w.program, options);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  TrainerOptions Options(int64_t begin, int64_t end, std::vector<StepObserver*> observers) {
    TrainerOptions options;
    options.executor = executor_.get();
    options.begin = begin;
    options.end = end;
    options.observers = std::move(observers);
    options.emit = [this](const v1::RunEvent& event) {
      events_.push_back(event);
      return absl::OkStatus();
    };
    return options;
  }

  const std::unique_ptr<Executor> executor_ = Constant(2, device_.get());
  std::vector<v1::RunEvent> events_;
  Calls calls_;
};

TEST_F(TrainerTest, ObserversAreCalledInOrderWithTheSteps) {
  LoggingObserver a("a", &calls_), b("b", &calls_);
  EXPECT_EQ(Trainer(Options(3, 5, {&a, &b})).Run(), absl::OkStatus());
  EXPECT_EQ(calls_, (Calls{"a run", "b run", "a begin 3", "b begin 3", "a end 3", "b end 3",
                           "a reported 3", "b reported 3", "a begin 4", "b begin 4", "a end 4",
                           "b end 4", "a reported 4", "b reported 4", "a run end", "b run end"}));
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(events_[1].step().step(), 4);
  EXPECT_DOUBLE_EQ(events_[1].step().values().at("x"), 24);
}

TEST_F(TrainerTest, AnObserversErrorEndsTheRunWithItsPlace) {
  LoggingObserver a("a", &calls_, "end 1"), b("b", &calls_);
  Trainer trainer(Options(0, 3, {&a, &b}));
  EXPECT_EQ(trainer.Run(), absl::AbortedError("planted"));
  EXPECT_EQ(trainer.failed_at(), "a, OnStepEnd of step 1");
  EXPECT_EQ(Calls(calls_.end() - 3, calls_.end()),
            (Calls{"a end 1", "a failed: planted", "b failed: planted"}));
  EXPECT_EQ(events_.size(), 1u) << "the report of step 1 is not sent";
}

TEST_F(TrainerTest, AStopEndsTheRunAtAStepBorder) {
  LoggingObserver a("a", &calls_);
  TrainerOptions options = Options(0, 5, {&a});
  options.check_not_stopped = [this] {
    return events_.size() < 2 ? absl::OkStatus() : absl::CancelledError("stopped");
  };
  EXPECT_EQ(Trainer(options).Run(), absl::CancelledError("stopped"));
  EXPECT_EQ(Calls(calls_.end() - 2, calls_.end()), (Calls{"a reported 1", "a failed: stopped"}));
}

TEST_F(TrainerTest, ACustomLoopChoosesItsSteps) {
  LoggingObserver a("a", &calls_);
  Trainer trainer(Options(0, 10, {&a}));
  ASSERT_EQ(trainer.Begin(), absl::OkStatus());
  for (int64_t step : {7, 7, 2}) ASSERT_EQ(trainer.RunStep(step), absl::OkStatus());
  ASSERT_EQ(trainer.End(), absl::OkStatus());
  ASSERT_EQ(events_.size(), 3u);
  EXPECT_EQ(events_[1].step().step(), 7);
  EXPECT_EQ(events_[2].step().step(), 2);
  EXPECT_EQ(calls_.front(), "a run");
  EXPECT_EQ(calls_.back(), "a run end");
}

TEST_F(TrainerTest, EvaluationAtTheEndEmitsTheMean) {
  EvaluationObserver evaluation(executor_.get(), 4), without(nullptr, 0);
  LoggingObserver a("a", &calls_);
  ASSERT_EQ(Trainer(Options(2, 3, {&a, &evaluation})).Run(), absl::OkStatus());
  ASSERT_TRUE(events_.back().has_evaluation());
  EXPECT_EQ(events_.back().evaluation().step(), 3);
  EXPECT_DOUBLE_EQ(events_.back().evaluation().values().at("x"), 24);
  EXPECT_EQ(calls_.back(), "a evaluation 3");
  EXPECT_EQ(Trainer(Options(2, 3, {&without})).Run().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrainerTest, CheckpointsAreWrittenEveryPeriodAndAtTheEnd) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, testing::TempDir());
  ShardWriter writer({&store, executor_.get(), device_.get()});
  CheckpointObserver checkpoint({&writer, "trainer", 2, 7});
  LoggingObserver a("a", &calls_);
  ASSERT_EQ(Trainer(Options(1, 5, {&checkpoint, &a})).Run(), absl::OkStatus());
  std::vector<int64_t> steps_done;
  for (const v1::RunEvent& event : events_) {
    if (!event.has_shard()) continue;
    steps_done.push_back(event.shard().steps_done());
    EXPECT_NE(event.shard().directory().find("-attempt-7"), std::string::npos);
  }
  EXPECT_EQ(steps_done, (std::vector<int64_t>{2, 4, 5}));
  EXPECT_EQ(std::count(calls_.begin(), calls_.end(), "a checkpoint 4"), 1);
}

TEST_F(TrainerTest, AFullDiskSkipsCheckpointsAndDoesNotEndTheRun) {
  FaultyFileSystem files(NewPosixFileSystem());
  FolderCheckpointStore store(files, testing::TempDir());
  files.set_free_bytes(0);
  ShardWriter writer({&store, executor_.get(), device_.get()});
  CheckpointObserver checkpoint({&writer, "trainer-full", 1, 7});
  TrainerOptions options = Options(0, 3, {&checkpoint});
  options.emit = [&](const v1::RunEvent& event) {
    if (event.has_shard() && event.shard().steps_done() == 2) files.set_free_bytes(1 << 20);
    events_.push_back(event);
    return absl::OkStatus();
  };
  ASSERT_EQ(Trainer(options).Run(), absl::OkStatus());
  std::vector<bool> written;
  for (const v1::RunEvent& event : events_) {
    if (!event.has_shard()) continue;
    written.push_back(event.shard().not_written().empty());
    EXPECT_EQ(written.back(), !event.shard().file().empty());
  }
  EXPECT_EQ(written, (std::vector<bool>{false, false, true}));
}

TEST_F(TrainerTest, ACheckpointMayBeWrittenWithoutAnyStep) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, testing::TempDir());
  ShardWriter writer({&store, executor_.get(), device_.get()});
  CheckpointOptions options{&writer, "trainer-begin", 2, 7};
  options.at_begin = true;
  CheckpointObserver checkpoint(options);
  ASSERT_EQ(Trainer(Options(4, 4, {&checkpoint})).Run(), absl::OkStatus());
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].shard().steps_done(), 4);
}

TEST_F(TrainerTest, ACheckpointThatIsAskedForMeanwhileIsWritten) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, testing::TempDir());
  RequestedCheckpoints requested;
  ShardWriter writer({&store, executor_.get(), device_.get()});
  CheckpointOptions options{&writer, "trainer-requested", 0, 7};
  options.goes_on = true;
  options.requested = &requested;
  CheckpointObserver checkpoint(options);
  TrainerOptions trainer = Options(0, 6, {&checkpoint});
  std::vector<int64_t> steps_done;
  trainer.emit = [&](const v1::RunEvent& event) {
    if (event.has_shard()) steps_done.push_back(event.shard().steps_done());
    if (event.has_step() && event.step().step() == 2) {
      // Two steps are done for certain, the third one's report is on its way.
      EXPECT_EQ(requested.Add(2), 2);
      EXPECT_LT(requested.Add(5), 5);
      EXPECT_LT(requested.Add(9), 9);
    }
    return absl::OkStatus();
  };
  ASSERT_EQ(Trainer(trainer).Run(), absl::OkStatus());
  // What the run did not reach, a later one writes.
  trainer.begin = 6;
  trainer.end = 10;
  ASSERT_EQ(Trainer(trainer).Run(), absl::OkStatus());
  // What is not durable yet, the last run waits for.
  options.goes_on = false;
  CheckpointObserver last(options);
  trainer.begin = 10;
  trainer.observers = {&last};
  ASSERT_EQ(Trainer(trainer).Run(), absl::OkStatus());
  EXPECT_EQ(steps_done, (std::vector<int64_t>{5, 9}));
}

TEST_F(TrainerTest, OperatorTimesFollowTheThirdTimedStep) {
  TimingObserver timing;
  ASSERT_EQ(Trainer(Options(10, 20, {&timing})).Run(), absl::OkStatus());
  ASSERT_EQ(events_.size(), 11u);
  EXPECT_EQ(events_[7].step().step(), 17);
  EXPECT_TRUE(events_[8].has_operator_times());
}

TEST_F(TrainerTest, AnAttachedTensorIsSentInTheStepsReport) {
  TensorObserver tensor({DType::kI8, {3}, "abc"});
  ASSERT_EQ(Trainer(Options(0, 1, {&tensor})).Run(), absl::OkStatus());
  const absl::StatusOr<ReportedTensor> sent = FromProto(events_[0].step().tensors().at("probe"));
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(sent->dtype, DType::kI8);
  EXPECT_EQ(sent->dims, Dims{3});
  EXPECT_EQ(sent->data, "abc");

  TensorObserver wrong({DType::kF32, {3}, "abc"});
  const absl::Status refused = Trainer(Options(4, 5, {&wrong})).Run();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.message()).find("'probe' in the report of step 4"),
            std::string::npos)
      << refused;

  TensorObserver large({DType::kI8,
                        {kMaxReportTensorBytes + 1},
                        std::string(static_cast<size_t>(kMaxReportTensorBytes) + 1, 'x')});
  const absl::Status too_large = Trainer(Options(4, 5, {&large})).Run();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(too_large.message()).find("smaller or fewer"), std::string::npos)
      << too_large;
}

TEST(ReportedTensor, WireFormIsCheckedAgainstTypeAndDimensions) {
  const auto code = [](ReportedTensor tensor) {
    return FromProto(ToProto(tensor)).status().code();
  };
  EXPECT_EQ(code({DType::kF32, {}, "1234"}), absl::StatusCode::kOk);
  EXPECT_EQ(code({DType::kF32, {0, 2}, ""}), absl::StatusCode::kOk);
  for (const ReportedTensor& bad :
       std::vector<ReportedTensor>{{DType::kInvalid, {1}, "1"},
                                   {DType::kI8, {-1}, ""},
                                   {DType::kI8, {2}, "1"},
                                   {DType::kI64, {int64_t{1} << 40, int64_t{1} << 40}, ""}}) {
    EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(TrainerTest, TwoTrainersRunSideBySideInOneProcess) {
  // A device is used by one thread at a time.
  const std::unique_ptr<Device> other = NewCpuDevice({1, 1 << 20});
  const std::unique_ptr<Executor> executors[] = {Constant(1, device_.get()),
                                                 Constant(3, other.get())};
  std::vector<double> values[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    TrainerOptions options = Options(100 * i, 100 * i + 50, {});
    options.executor = executors[i].get();
    options.emit = [&values, i](const v1::RunEvent& event) {
      values[i].push_back(event.step().values().at("x"));
      return absl::OkStatus();
    };
    threads.emplace_back([options] { EXPECT_EQ(Trainer(options).Run(), absl::OkStatus()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(values[0], std::vector<double>(50, 6));
  EXPECT_EQ(values[1], std::vector<double>(50, 54));
}

}  // namespace
}  // namespace espalier
