// Replays on a coordinator: durable, shared out among idle workers, and through losses of workers
// and restarts. Workers are fake: what they compute is in tests/e2e/replay_test.py.
#include <gmock/gmock.h>

#include <algorithm>

#include "espalier/v1/replay.grpc.pb.h"
#include "server/coordinator_fixture.h"
#include "server/store/job_store.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

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
  // By Replay.Get.
  grpc::StatusCode Look(const std::string& id, v1::ReplayInfo* replay = nullptr) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::GetReplayRequest request;
    request.set_replay_id(id);
    v1::GetReplayReply reply;
    const grpc::Status status = Stub()->Get(&context, request, &reply);
    if (replay != nullptr) *replay = reply.replay();
    return status.error_code();
  }
  grpc::Status Delete(const std::string& id) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::DeleteReplayRequest request;
    request.set_replay_id(id);
    v1::DeleteReplayReply reply;
    return Stub()->Delete(&context, request, &reply);
  }
  grpc::Status DeleteJob(const std::string& job) {
    grpc::ClientContext context;
    v1::DeleteJobRequest request;
    request.set_job_id(job);
    v1::DeleteJobReply reply;
    return training_->Delete(&context, request, &reply);
  }
  void Cancel(const std::string& id) {
    grpc::ClientContext context;
    v1::CancelReplayRequest request;
    request.set_replay_id(id);
    v1::CancelReplayReply reply;
    EXPECT_TRUE(Stub()->Cancel(&context, request, &reply).ok());
  }
  // One that answers something: the loss of each checkpoint's evaluation.
  static v1::StartReplayRequest Evaluations(const std::string& run = "tiny") {
    v1::StartReplayRequest request = Request(run);
    request.mutable_spec()->set_at_checkpoints(true);
    request.mutable_spec()->set_evaluate_holdout(true);
    return request;
  }
  void Restart() {
    const std::string address = coordinator_->grpc_address();
    coordinator_.reset();
    StartCoordinator(address);
  }
  grpc::Status Upload(const std::string& name, const std::string& text, bool replace = false,
                      bool force = false) {
    grpc::ClientContext context;
    v1::UploadReply uploaded;
    const auto upload = models_->Upload(&context, &uploaded);
    std::vector<v1::UploadRequest> parts(3);
    parts[0].mutable_header()->set_name(name);
    parts[0].mutable_header()->set_kind(v1::Artifact::DATASET);
    parts[0].mutable_header()->set_replace(replace);
    parts[0].mutable_header()->set_force(force);
    parts[1].mutable_file()->set_name("text.txt");
    parts[2].set_chunk(text);
    for (const v1::UploadRequest& part : parts) upload->Write(part);
    upload->WritesDone();
    return upload->Finish();
  }
  // Of the answers to a replay.
  std::vector<std::string> FilesOf(const std::string& id) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(data_dir_)) {
      if (entry.path().string().find(id) != std::string::npos) files.push_back(entry.path());
    }
    return files;
  }
  std::vector<v1::HistoryRow> Answers(const std::string& id, const std::string& run = "tiny") {
    v1::QueryHistoryRequest request;
    request.set_run(run);
    request.set_source(v1::HistoryRow::REPLAY);
    std::vector<v1::HistoryRow> rows = History(request);
    std::erase_if(rows, [&](const v1::HistoryRow& row) { return row.replay_id() != id; });
    return rows;
  }
  std::vector<v1::HistoryRow> History(v1::QueryHistoryRequest request) {
    grpc::ClientContext context;
    if (request.run().empty()) request.set_run("tiny");
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
  std::vector<v1::HistoryRow> RecordedRows(const std::string& run) {
    v1::QueryHistoryRequest request;
    request.set_run(run);
    request.set_source(v1::HistoryRow::FORWARD);
    return History(request);
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
  const std::string id = Start(Evaluations()), stays = Start(Evaluations("other"));
  const std::string of_both = Start(Evaluations("*"));
  for (const std::string& replay : {id, stays, of_both}) {
    ASSERT_EQ(WaitForReplay(replay).state(), v1::REPLAY_SUCCEEDED) << replay;
  }
  EXPECT_THAT(List("tiny"), SizeIs(2));
  const grpc::Status deleted = DeleteJob(job);
  ASSERT_TRUE(deleted.ok()) << deleted.error_message();
  const auto expect = [&] {
    EXPECT_THAT(List(), UnorderedElementsAre(Property(&v1::ReplayInfo::id, stays),
                                             Property(&v1::ReplayInfo::id, of_both)));
    EXPECT_EQ(Look(id), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(Get(of_both).notes(), Contains(HasSubstr("tiny@1 was deleted")));
    EXPECT_THAT(Get(of_both).runs(), ElementsAre("other@1"));
    EXPECT_THAT(Get(of_both).job_ids(), ElementsAre(kept));
    EXPECT_EQ(Get(of_both).rows(), kSteps / 10 + 1) << "those that there are";
    EXPECT_THAT(Get(of_both).segments(), Each(Property(&v1::ReplaySegment::job_id, kept)));
    EXPECT_THAT(Answers(of_both, "other"), SizeIs(kSteps / 10 + 1));
    EXPECT_THAT(FilesOf(id), SizeIs(0));
  };
  expect();
  Restart();
  expect();
  const grpc::Status last = DeleteJob(kept);
  ASSERT_TRUE(last.ok()) << last.error_message();
  EXPECT_THAT(List(), SizeIs(0)) << "the other run of one was deleted before the restart";
}

TEST_F(ReplayTest, AJobThatIsReplayedIsNotDeleted) {
  FakeWorker& worker = AddWorker();
  const std::string job = Record();
  worker.Stall();
  const std::string id = Start(Request("tiny"));
  const grpc::Status refused = DeleteJob(job);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("espalier replay cancel " + id));
  worker.Unstall();
  Cancel(id);
  ASSERT_TRUE(DeleteJob(job).ok());
  EXPECT_THAT(List(), SizeIs(0));
}

TEST_F(ReplayTest, AReplaySaysWhichRunsItIsOf) {
  AddWorker();
  const std::string first = Record(), second = Record();
  v1::ReplayInfo replay;
  ASSERT_EQ(Look(Start(Evaluations()), &replay), grpc::StatusCode::OK);
  EXPECT_THAT(replay.runs(), ElementsAre("tiny@2"));
  EXPECT_THAT(replay.job_ids(), ElementsAre(second));
  ASSERT_EQ(Look(Start(Evaluations("tiny@*")), &replay), grpc::StatusCode::OK);
  EXPECT_THAT(replay.runs(), ElementsAre("tiny@1", "tiny@2"));
  EXPECT_THAT(replay.job_ids(), ElementsAre(first, second));
  Start(Evaluations("tiny@1"));
  EXPECT_THAT(List("tiny"), SizeIs(3)) << "of all versions";
  EXPECT_THAT(List("tiny@2"), SizeIs(2));
  EXPECT_EQ(Look("replay-0"), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ReplayTest, ADeletedReplayIsGoneWithItsAnswers) {
  AddWorker();
  Record();
  const std::string id = Start(Evaluations()), stays = Start(Evaluations());
  ASSERT_EQ(WaitForReplay(id).state(), v1::REPLAY_SUCCEEDED);
  ASSERT_EQ(WaitForReplay(stays).state(), v1::REPLAY_SUCCEEDED);
  EXPECT_GT(FilesOf(id).size(), 0u);
  const std::vector<v1::HistoryRow> recorded = RecordedRows("tiny");
  const grpc::Status status = Delete(id);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto expect = [&] {
    EXPECT_THAT(List(), ElementsAre(Property(&v1::ReplayInfo::id, stays)));
    EXPECT_EQ(Look(id), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(Delete(id).error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(Answers(id), SizeIs(0));
    EXPECT_THAT(Answers(stays), SizeIs(kSteps / 10 + 1));
    EXPECT_EQ(RecordedRows("tiny").size(), recorded.size());
    EXPECT_THAT(FilesOf(id), SizeIs(0)) << "it takes no room";
  };
  expect();
  Restart();
  expect();
}

TEST_F(ReplayTest, OneThatRunsIsNotDeleted) {
  FakeWorker& worker = AddWorker();
  Record();
  worker.Stall();
  const std::string id = Start(Request("tiny"));
  const grpc::Status refused = Delete(id);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(),
              AllOf(HasSubstr("only one that is over"), HasSubstr("espalier replay cancel " + id)));
  worker.Unstall();
  Cancel(id);
  const grpc::Status status = Delete(id);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// As kill -9 leaves it: the record is marked, and some of the answers are removed.
TEST_F(ReplayTest, AnInterruptedDeletionIsCompletedAtTheNextStart) {
  AddWorker();
  Record();
  const std::string id = Start(Evaluations());
  ASSERT_EQ(WaitForReplay(id).state(), v1::REPLAY_SUCCEEDED);
  const std::string blob = absl::StrCat("replays/", id, "/replay");
  v1::StoredReplay stored;
  ASSERT_TRUE(stored.ParseFromString(*coordinator_->store().GetBlob(blob)));
  stored.set_deleted(true);
  ASSERT_EQ(coordinator_->store().PutBlob(blob, stored.SerializeAsString()), absl::OkStatus());
  for (const std::string& file : FilesOf(id)) {
    if (file.ends_with(".rows")) std::filesystem::remove(file);
    break;
  }
  Restart();
  EXPECT_THAT(List(), SizeIs(0));
  EXPECT_EQ(Look(id), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(Answers(id), SizeIs(0));
  EXPECT_THAT(FilesOf(id), SizeIs(0));
  EXPECT_EQ(coordinator_->store().GetBlob(blob).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReplayTest, ARunWhoseDataWereDeletedSaysWhatItNeeds) {
  AddWorker();
  const auto upload = [&] { return Upload("letters", std::string(4096, 'e')); };
  ASSERT_TRUE(upload().ok());
  v1::SubmitRequest request = Recorded();
  request.mutable_spec()->mutable_dataset()->set_uri("artifact:letters");
  request.mutable_spec()->mutable_search()->set_max_devices(1);
  const std::string job = Submit(request);
  const auto remove = [&](bool force) {
    grpc::ClientContext context;
    v1::DeleteArtifactRequest removal;
    removal.set_name("letters");
    removal.set_force(force);
    v1::DeleteArtifactReply reply;
    return models_->Delete(&context, removal, &reply);
  };
  ASSERT_EQ(WaitForEnd(job).job().state(), v1::SUCCEEDED);
  const grpc::Status refused = remove(/*force=*/false);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(
      refused.error_message(),
      AllOf(HasSubstr(absl::StrCat("needed to replay tiny@1 (", job, ")")), HasSubstr("--force")));
  // Another content takes it away as well.
  const std::string other(4096, 'f');
  const grpc::Status kept = Upload("letters", other, /*replace=*/true);
  EXPECT_EQ(kept.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(kept.error_message(),
              AllOf(HasSubstr("needed to replay tiny@1"), HasSubstr("--force beside --replace")));
  EXPECT_TRUE(Upload("letters", std::string(4096, 'e'), /*replace=*/true).ok()) << "the same";
  EXPECT_EQ(WaitForReplay(Start(Request("tiny"))).state(), v1::REPLAY_SUCCEEDED);
  EXPECT_TRUE(Upload("letters", other, /*replace=*/true, /*force=*/true).ok());
  const grpc::Status forced = remove(/*force=*/true);
  ASSERT_TRUE(forced.ok()) << forced.error_message();
  v1::ReplayInfo replay;
  const grpc::Status lacks = Begin(Request("tiny"), &replay);
  EXPECT_EQ(lacks.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(lacks.error_message(),
              AllOf(HasSubstr("tiny@1: its dataset, the artifact 'letters', was deleted"),
                    HasSubstr("espalier models upload letters")));
  ASSERT_TRUE(Upload("letters", std::string(4096, 'f')).ok());
  EXPECT_EQ(Begin(Request("tiny"), &replay).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(Begin(Request("tiny"), &replay).error_message(),
              AllOf(HasSubstr("the artifact 'letters', was replaced"), HasSubstr("SHA-256"),
                    HasSubstr("upload the former content under that name")));
  ASSERT_TRUE(remove(/*force=*/true).ok());
  ASSERT_TRUE(upload().ok());
  EXPECT_EQ(WaitForReplay(Start(Request("tiny"))).state(), v1::REPLAY_SUCCEEDED);
  // Of several, the others are replayed.
  Record();
  std::filesystem::remove(text_);
  const std::string both = Start(Request("tiny@*"));
  EXPECT_EQ(WaitForReplay(both).state(), v1::REPLAY_SUCCEEDED);
  EXPECT_THAT(Get(both).runs(), ElementsAre("tiny@1"));
  EXPECT_THAT(Get(both).notes(), Contains(AllOf(HasSubstr("tiny@2: its dataset '" + text_ + "'"),
                                                HasSubstr("not there any more"))));
  ASSERT_TRUE(DeleteJob(job).ok());
  EXPECT_TRUE(remove(/*force=*/false).ok()) << "nothing needs it any more";
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
  EXPECT_THAT(Get(id).notes(), SizeIs(0)) << "it does not wait any more";
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
    EXPECT_THAT(replay.segments(),
                Contains(Property(&v1::ReplaySegment::state, v1::REPLAY_FAILED)));
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
