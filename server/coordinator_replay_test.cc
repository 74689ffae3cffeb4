// Replays on a coordinator: durable, shared out among idle workers, and through losses of workers
// and restarts. Workers are fake: what they compute is in tests/e2e/replay_test.py.
#include <gmock/gmock.h>

#include <algorithm>

#include "espalier/v1/replay.grpc.pb.h"
#include "server/coordinator_fixture.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::SizeIs;

class ReplayTest : public CoordinatorFixture {
 protected:
  std::unique_ptr<v1::Replay::Stub> Stub() {
    return v1::Replay::NewStub(
        grpc::CreateChannel(coordinator_->grpc_address(), grpc::InsecureChannelCredentials()));
  }
  // A job of one rank that has trained kSteps steps, with a checkpoint after every tenth.
  std::string Record(const std::string& name = "tiny") {
    v1::SubmitRequest request = Recorded();
    request.mutable_spec()->set_name(name);
    request.mutable_spec()->mutable_search()->set_max_devices(1);
    const std::string id = Submit(request);
    EXPECT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
    return id;
  }
  static v1::StartReplayRequest Request(const std::string& run, const std::string& key = "") {
    v1::StartReplayRequest request;
    request.mutable_spec()->set_run(run);
    request.set_idempotency_key(key);
    return request;
  }
  grpc::Status Begin(const v1::StartReplayRequest& request, v1::ReplayInfo* replay) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::StartReplayReply reply;
    const grpc::Status status = Stub()->Start(&context, request, &reply);
    *replay = reply.replay();
    return status;
  }
  std::string Start(const v1::StartReplayRequest& request) {
    v1::ReplayInfo replay;
    const grpc::Status status = Begin(request, &replay);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return replay.id();
  }
  std::vector<v1::ReplayInfo> List(const std::string& run = "") {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::ListReplaysRequest request;
    request.set_run(run);
    v1::ListReplaysReply reply;
    const grpc::Status status = Stub()->List(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {reply.replays().begin(), reply.replays().end()};
  }
  v1::ReplayInfo Get(const std::string& id) {
    for (const v1::ReplayInfo& replay : List()) {
      if (replay.id() == id) return replay;
    }
    ADD_FAILURE() << "there is no " << id;
    return {};
  }
  std::vector<v1::HistoryRow> Answers(const std::string& id) {
    v1::QueryHistoryRequest request;
    request.set_source(v1::HistoryRow::REPLAY);
    std::vector<v1::HistoryRow> rows = History(request);
    std::erase_if(rows, [&](const v1::HistoryRow& row) { return row.replay_id() != id; });
    return rows;
  }
  std::vector<v1::HistoryRow> History(v1::QueryHistoryRequest request) {
    grpc::ClientContext context;
    request.set_run("tiny");
    const auto reader = Stub()->Query(&context, request);
    std::vector<v1::HistoryRow> rows;
    v1::QueryHistoryReply reply;
    while (reader->Read(&reply)) {
      rows.insert(rows.end(), reply.rows().begin(), reply.rows().end());
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return rows;
  }
  v1::ReplayInfo WaitForReplay(const std::string& id) {
    v1::ReplayInfo replay;
    EXPECT_TRUE(Eventually([&] {
      replay = Get(id);
      return replay.state() != v1::REPLAY_WAITING && replay.state() != v1::REPLAY_RUNNING;
    })) << replay.DebugString();
    return replay;
  }
  // A graph that squares a parameter of the job.
  v1::ReplayGraph Squares() {
    GraphBuilder builder(coordinator_->operators(), "squares");
    const ValueId head = builder.Input("param(head)", DType::kF32, {256, -1});
    builder.Output("y", builder.Op("multiply", {head, head}));
    v1::ReplayGraph squares;
    squares.set_name("squares");
    *squares.mutable_graph() = ToProto(*builder.Build());
    return squares;
  }
  void ExpectWhole(const v1::ReplayInfo& replay) {
    EXPECT_EQ(replay.state(), v1::REPLAY_SUCCEEDED) << replay.DebugString();
    for (const v1::ReplaySegment& segment : replay.segments()) {
      EXPECT_EQ(segment.steps_done(), segment.end_step() - segment.checkpoint_step());
      EXPECT_TRUE(segment.comparison().bits()) << segment.comparison().reason();
      EXPECT_EQ(segment.comparison().compared(), segment.steps_done());
    }
    EXPECT_TRUE(Eventually([&] {
      return coordinator_->workers().Idle().size() ==
             static_cast<size_t>(coordinator_->workers().Live());
    }));
  }
};

TEST_F(ReplayTest, IdleWorkersShareTheStepsAndAreGivenBack) {
  AddWorker();
  AddWorker();
  AddWorker();
  Record();
  const v1::ReplayInfo replay = WaitForReplay(Start(Request("tiny")));
  ExpectWhole(replay);
  ASSERT_THAT(replay.segments(), SizeIs(3));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(replay.segments(i).first_step(), 20 * i);
}

// Ids of replays are random.
TEST_F(ReplayTest, AHistoryIsByNameAndStepWhateverReplayAnsweredIt) {
  AddWorker();
  Record();
  v1::StartReplayRequest evaluate = Request("tiny");
  evaluate.mutable_spec()->set_at_checkpoints(true);
  evaluate.mutable_spec()->set_evaluate_holdout(true);
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (int64_t first = kSteps; first >= 0; first -= 10) parts.emplace_back(first, first + 1);
  parts.emplace_back(0, 0);  // all of it again
  for (const auto& [first, end] : parts) {
    evaluate.mutable_spec()->set_first_step(first);
    evaluate.mutable_spec()->set_end_step(end);
    EXPECT_EQ(WaitForReplay(Start(evaluate)).state(), v1::REPLAY_SUCCEEDED);
  }
  const std::vector<v1::HistoryRow> rows = History({});
  const auto key = [](const v1::HistoryRow& row) {
    return std::make_tuple(row.name(), row.reduction(), row.step(), row.unix_ms());
  };
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end(),
                             [&](const auto& a, const auto& b) { return key(a) < key(b); }));
  const auto answers = std::count_if(rows.begin(), rows.end(), [](const v1::HistoryRow& row) {
    return row.name() == "evaluation.loss";
  });
  EXPECT_EQ(answers, 2 * (kSteps / 10 + 1));
  EXPECT_GT(static_cast<int64_t>(rows.size()), answers) << "and what was recorded";
}

TEST_F(ReplayTest, ARepeatedStartIsTheSameReplay) {
  AddWorker();
  Record();
  const std::string id = Start(Request("tiny", "key"));
  EXPECT_EQ(Start(Request("tiny", "key")), id);
  v1::ReplayInfo replay;
  v1::StartReplayRequest other = Request("tiny", "key");
  other.mutable_spec()->set_every(2);
  const grpc::Status status = Begin(other, &replay);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  ExpectWhole(WaitForReplay(id));
  EXPECT_EQ(Start(Request("tiny", "key")), id) << "after it is over, too";
  EXPECT_THAT(List(), SizeIs(1));
}

TEST_F(ReplayTest, ACancelledReplayGivesItsWorkersBack) {
  FakeWorker& worker = AddWorker();
  Record();
  worker.Stall();
  const std::string id = Start(Request("tiny"));
  ASSERT_TRUE(Eventually([&] { return Get(id).state() == v1::REPLAY_RUNNING; }));
  worker.Unstall();
  grpc::ClientContext context;
  v1::CancelReplayRequest request;
  request.set_replay_id(id);
  v1::CancelReplayReply reply;
  ASSERT_TRUE(Stub()->Cancel(&context, request, &reply).ok());
  // It may have come to its end before.
  EXPECT_THAT(reply.replay().state(), ::testing::AnyOf(v1::REPLAY_CANCELLED, v1::REPLAY_SUCCEEDED));
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Idle().size() == 1; }));
  ExpectWhole(WaitForReplay(Start(Request("tiny"))));
}

TEST_F(ReplayTest, AKilledWorkerCostsAReplayOnlyTime) {
  AddWorker();
  AddWorker();
  Record();
  workers_[0]->Stall();
  workers_[1]->Stall();
  v1::StartReplayRequest request = Request("tiny");
  request.mutable_spec()->set_max_workers(1);
  const std::string id = Start(request);
  ASSERT_TRUE(Eventually([&] { return !Get(id).segments(0).workers().empty(); }));
  // Names of fake workers begin at 1, as ids do.
  const std::string at_work = Get(id).segments(0).workers(0);
  workers_[at_work == "w1" ? 0 : 1]->Kill();
  workers_[at_work == "w1" ? 1 : 0]->Unstall();
  const v1::ReplayInfo replay = WaitForReplay(id);
  EXPECT_EQ(replay.state(), v1::REPLAY_SUCCEEDED) << replay.DebugString();
  EXPECT_THAT(replay.notes(), Contains(HasSubstr("it goes on from step")));
}

TEST_F(ReplayTest, ARestartedCoordinatorGoesOn) {
  FakeWorker& worker = AddWorker();
  Record();
  const std::string before = Start(Request("tiny"));
  ExpectWhole(WaitForReplay(before));
  worker.Stall();
  v1::StartReplayRequest request = Request("tiny");
  *request.mutable_spec()->add_graphs() = Squares();
  const std::string id = Start(request);
  ASSERT_TRUE(Eventually([&] { return Get(id).state() == v1::REPLAY_RUNNING; }));
  const std::string address = coordinator_->grpc_address();
  worker.Unstall();
  coordinator_.reset();
  StartCoordinator(address);
  const v1::ReplayInfo replay = WaitForReplay(id);
  EXPECT_EQ(replay.state(), v1::REPLAY_SUCCEEDED) << replay.DebugString();
  ASSERT_THAT(replay.spec().graphs(), SizeIs(1));
  EXPECT_EQ(replay.spec().graphs(0).name(), "squares");
  EXPECT_FALSE(replay.spec().graphs(0).has_graph()) << "lists and watches are short";
  EXPECT_EQ(Get(before).state(), v1::REPLAY_SUCCEEDED);
}

TEST_F(ReplayTest, ReplaysOfDeletedJobsAreForgotten) {
  AddWorker();
  const std::string job = Record();
  const std::string kept = Record("other");
  const std::string id = Start(Request("tiny")), stays = Start(Request("other"));
  WaitForReplay(id);
  WaitForReplay(stays);
  EXPECT_THAT(List("tiny"), SizeIs(1));
  grpc::ClientContext context;
  v1::DeleteJobRequest request;
  request.set_job_id(job);
  v1::DeleteJobReply reply;
  ASSERT_TRUE(training_->Delete(&context, request, &reply).ok());
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  EXPECT_THAT(List(), ::testing::ElementsAre(Property(&v1::ReplayInfo::id, stays)));
}

TEST_F(ReplayTest, AReplayWaitsForWorkersLikeTheRecordedOnesAndSaysSo) {
  AddWorker();
  AddWorker();
  v1::SubmitRequest request = Recorded();
  const std::string job = Submit(request);
  ASSERT_EQ(WaitForEnd(job).job().state(), v1::SUCCEEDED);
  workers_[1]->Kill();
  ASSERT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 1; }));
  const std::string id = Start(Request(job));
  ASSERT_TRUE(Eventually([&] { return Get(id).notes_size() > 0; }));
  EXPECT_THAT(Get(id).notes(0), HasSubstr("--any-plan"));
  EXPECT_EQ(Get(id).state(), v1::REPLAY_WAITING);
  AddWorker();
  ExpectWhole(WaitForReplay(id));
}

TEST_F(ReplayTest, EvaluationsAreEstimatedByWhatWasMeasured) {
  AddWorker({.step = absl::Milliseconds(12), .evaluation_seconds = 0.5});
  Record("steps");
  v1::SubmitRequest request = Recorded();
  request.mutable_spec()->set_name("validated");
  request.mutable_spec()->mutable_validation()->set_every_steps(30);
  ASSERT_EQ(WaitForEnd(Submit(request)).job().state(), v1::SUCCEEDED);
  const auto expect = [&](const std::string& run, double of_each) {
    v1::StartReplayRequest evaluate = Request(run);
    evaluate.mutable_spec()->set_at_checkpoints(true);
    evaluate.mutable_spec()->set_evaluate_holdout(true);
    grpc::ClientContext context;
    v1::EstimateReplayRequest asked;
    *asked.mutable_spec() = evaluate.spec();
    v1::EstimateReplayReply reply;
    const grpc::Status status = Stub()->Estimate(&context, asked, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const v1::ReplayEstimate& estimate = reply.estimate();
    EXPECT_GT(estimate.seconds(), 7 * of_each);
    EXPECT_LT(estimate.seconds(), 7 * of_each + 0.4) << "with loading, which is guessed";
    EXPECT_GT(estimate.loading_seconds(), 0);
    EXPECT_LT(estimate.loading_seconds(), 0.4);
    EXPECT_EQ(estimate.rows(), WaitForReplay(Start(evaluate)).rows());
    EXPECT_THAT(estimate.notes(), SizeIs(0));
  };
  expect("steps", 13 * 0.012 / 3);  // 13 batches without a backward pass
  expect("validated", 0.5);
}

TEST_F(ReplayTest, AFullDiskFailsAReplayAndNothingElse) {
  AddWorker();
  AddWorker({.step = absl::Milliseconds(5)});
  Record();
  v1::StartReplayRequest evaluate = Request("tiny");
  evaluate.mutable_spec()->set_at_checkpoints(true);
  evaluate.mutable_spec()->set_evaluate_holdout(true);
  const auto expect_failure = [&](const std::string& id) {
    const v1::ReplayInfo replay = WaitForReplay(id);
    EXPECT_EQ(replay.state(), v1::REPLAY_FAILED) << replay.DebugString();
    EXPECT_THAT(replay.error(),
                AllOf(HasSubstr("tiny@1: answers cannot be stored"), HasSubstr(".rows"),
                      HasSubstr("No space left"), HasSubstr("make room")));
  };
  files_.set_free_bytes(400);  // for some answers
  const std::string partly = Start(evaluate);
  expect_failure(partly);
  const std::vector<v1::HistoryRow> before = Answers(partly);
  EXPECT_GE(before.size(), 1u);
  EXPECT_LT(before.size(), kSteps / 10 + 1u);
  EXPECT_EQ(static_cast<int64_t>(before.size()), Get(partly).rows());

  files_.set_free_bytes(int64_t{1} << 40);
  const std::string again = Start(evaluate);
  EXPECT_EQ(WaitForReplay(again).state(), v1::REPLAY_SUCCEEDED) << Get(again).DebugString();
  EXPECT_THAT(Answers(again), SizeIs(kSteps / 10 + 1)) << "one for each checkpoint, and step 0";
  const std::vector<v1::HistoryRow> after = Answers(partly);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].SerializeAsString(), before[i].SerializeAsString());
  }

  files_.set_free_bytes(0);
  v1::SubmitRequest request = Recorded();
  request.mutable_spec()->set_name("other");
  request.mutable_spec()->mutable_search()->set_max_devices(1);
  const std::string job = Submit(request);
  expect_failure(Start(evaluate));
  WaitFor(job, [](const v1::Job& training) { return !training.checkpoints_paused().empty(); });
  files_.set_free_bytes(int64_t{1} << 40);
  const v1::GetJobReply trained = WaitForEnd(job);
  EXPECT_EQ(trained.job().state(), v1::SUCCEEDED) << trained.job().error();
  EXPECT_EQ(trained.job().attempts(), 1);
  ExpectWholeCurve(trained);
}

TEST_F(ReplayTest, WhatCannotBeReplayedIsRefusedAtOnce) {
  AddWorker();
  Record();
  v1::SubmitRequest off = Submission();
  off.mutable_spec()->set_name("off");
  off.mutable_spec()->mutable_record()->set_mode(v1::RecordOptions::OFF);
  WaitForEnd(Submit(off));
  const auto refusal = [&](const std::string& run, auto change) {
    v1::StartReplayRequest request = Request(run);
    change(request.mutable_spec());
    v1::ReplayInfo replay;
    const grpc::Status status = Begin(request, &replay);
    EXPECT_FALSE(status.ok());
    return status;
  };
  const auto nothing = [](v1::ReplaySpec*) {};
  EXPECT_EQ(refusal("tinny", nothing).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(refusal("off", nothing).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refusal("tiny", [](v1::ReplaySpec* spec) { spec->set_end_step(61); }).error_message(),
              HasSubstr("0 to 59"));
  EXPECT_THAT(refusal("tiny", [](v1::ReplaySpec* spec) { spec->add_log("norm("); }).error_message(),
              HasSubstr("log[0]"));
  EXPECT_EQ(refusal("tiny", [](v1::ReplaySpec* spec) { spec->add_log("no.such"); }).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(refusal("tiny",
                      [](v1::ReplaySpec* spec) {
                        v1::ReplayGraph* graph = spec->add_graphs();
                        graph->set_name("many");
                        graph->set_onnx(std::string(2 << 20, 'x'));
                      })
                  .error_message(),
              HasSubstr("graphs: 1 of 2097"));
  EXPECT_THAT(List(), SizeIs(0));
}

}  // namespace
}  // namespace espalier
