// The coordinator in this process, with workers over real gRPC that compute nothing.
#include "server/coordinator.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/models.grpc.pb.h"
#include "proto/training.grpc.pb.h"
#include "server/artifacts/artifact_store.h"
#include "server/fake_worker.h"
#include "server/jobs/job_runner.h"
#include "server/membership/worker_registry.h"
#include "server/metrics/metrics.h"
#include "server/store/job_store.h"
#include "server/store/sqlite_store.h"
#include "worker/checkpoint/faulty_file_system.h"
#include "worker/transport_security.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 60;

class CoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    data_dir_ = ::testing::TempDir() + "/coordinator_" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(data_dir_);
    text_ = data_dir_ + "-text";
    std::ofstream(text_) << std::string(4096, 'e');
    StartCoordinator("127.0.0.1:0");
  }
  void TearDown() override {
    workers_.clear();
    coordinator_.reset();
  }

  void StartCoordinator(const std::string& listen, CoordinatorOptions options = {}) {
    options.data_dir = data_dir_;
    options.listen = listen;
    options.lease = absl::Seconds(3);
    options.recovery_settle = absl::Milliseconds(300);
    options.max_fruitless_attempts = 3;
    options.file_system = &files_;
    auto opened = Coordinator::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    absl::Status started = coordinator_->Start();
    ASSERT_TRUE(started.ok()) << started;
    auto channel =
        grpc::CreateChannel(coordinator_->grpc_address(), grpc::InsecureChannelCredentials());
    training_ = proto::Training::NewStub(channel);
    cluster_ = proto::Cluster::NewStub(channel);
    models_ = proto::Models::NewStub(channel);
  }

  FakeWorker& AddWorker(FakeWorkerOptions options = {}) {
    options.coordinator = coordinator_->grpc_address();
    options.name = absl::StrCat("fake-", workers_.size() + 1);
    const int before = coordinator_->workers().Live();
    workers_.push_back(FakeWorker::Start(options));
    for (int i = 0; i < 200 && coordinator_->workers().Live() <= before; ++i) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_EQ(coordinator_->workers().Live(), before + 1);
    return *workers_.back();
  }

  // Bytes to next bytes, on a text of 4 KiB.
  proto::SubmitRequest Submission() {
    GraphBuilder builder(coordinator_->operators(), "tiny");
    const ValueId tokens = builder.Input("tokens", DType::kI32, {-1, 8});
    const ValueId targets = builder.Input("targets", DType::kI32, {-1, 8});
    const Initializer normal{Initializer::kNormal, 0.1};
    const ValueId table = builder.Parameter("table", DType::kF32, {256, 4}, normal);
    const ValueId head = builder.Parameter("head", DType::kF32, {256, 4}, normal);
    const ValueId hidden = builder.Op("embedding", {tokens, table});
    const ValueId logits = builder.Op("linear", {hidden, head});
    builder.Output("loss", builder.Op("sparse_categorical_crossentropy", {logits, targets}));
    auto graph = builder.Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    proto::SubmitRequest request;
    proto::TrainingSpec* spec = request.mutable_spec();
    spec->set_name("tiny");
    *spec->mutable_graph() = ToProto(*graph);
    spec->mutable_dataset()->set_uri(text_);
    spec->mutable_dataset()->set_format(proto::Dataset::TEXT);
    spec->mutable_dataset()->set_sequence_length(8);
    spec->mutable_dataset()->set_holdout_fraction(0.1);
    spec->set_batch_size(4);
    spec->set_steps(kSteps);
    spec->set_checkpoint_every_steps(10);
    spec->mutable_optimizer()->set_name("sgd");
    spec->mutable_optimizer()->mutable_learning_rate()->set_peak(0.1);
    spec->mutable_search()->set_strategy(proto::SearchOptions::DATA_PARALLEL);
    return request;
  }

  std::string Submit(const proto::SubmitRequest& request) {
    grpc::ClientContext context;
    proto::SubmitReply reply;
    grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.job_id();
  }

  proto::CancelReply Cancel(const std::string& id) {
    grpc::ClientContext context;
    proto::CancelRequest request;
    request.set_job_id(id);
    proto::CancelReply reply;
    grpc::Status status = training_->Cancel(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  void Resume(const std::string& id) {
    grpc::ClientContext context;
    proto::ResumeRequest request;
    request.set_job_id(id);
    proto::ResumeReply reply;
    grpc::Status status = training_->Resume(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  proto::GetJobReply Get(const std::string& id) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);  // channels to one address share what they know of a restart
    proto::GetJobRequest request;
    request.set_job_id(id);
    request.set_with_reports(true);
    proto::GetJobReply reply;
    EXPECT_TRUE(training_->Get(&context, request, &reply).ok());
    return reply;
  }

  // Polls until `done`, at most half a minute.
  template <typename Done>
  proto::GetJobReply WaitFor(const std::string& id, Done done) {
    proto::GetJobReply reply;
    for (int i = 0; i < 1500; ++i) {
      reply = Get(id);
      if (done(reply.job())) return reply;
      absl::SleepFor(absl::Milliseconds(20));
    }
    ADD_FAILURE() << "waited in vain; state " << proto::JobState_Name(reply.job().state())
                  << " steps " << reply.job().steps_done() << " " << reply.job().error();
    return reply;
  }
  proto::GetJobReply WaitForEnd(const std::string& id) {
    return WaitFor(id, [](const proto::Job& job) { return job.state() >= proto::SUCCEEDED; });
  }

  // Whether it becomes true, within half a minute.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 1500 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(20));
    return condition();
  }

  std::string CheckpointsOf(const std::string& id) const {
    return data_dir_ + "/checkpoints/" + id;
  }

  // Every step reported once, in order, with the undisturbed run's loss.
  static void ExpectWholeCurve(const proto::GetJobReply& reply) {
    ASSERT_EQ(reply.reports_size(), kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(reply.reports(static_cast<int>(step)).step(), step);
      EXPECT_NEAR(reply.reports(static_cast<int>(step)).values().at("loss"),
                  FakeWorker::LossOf(step), 1e-9);
    }
  }

  std::string data_dir_, text_;
  FaultyFileSystem files_{NewPosixFileSystem()};
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<proto::Training::Stub> training_;
  std::unique_ptr<proto::Cluster::Stub> cluster_;
  std::unique_ptr<proto::Models::Stub> models_;
};

// Those of a million steps did not fit into a message.
TEST_F(CoordinatorTest, TheNewestOfALongLogIsAnsweredAndAllOfItCanBeWatched) {
  const std::string id = Submit(Submission());  // waits: there is no worker
  constexpr int kMessages = 40;
  JobWrite write;
  for (int i = 0; i < kMessages; ++i) {
    write.messages.push_back(absl::StrCat(i, std::string(1 << 20, '.')));
  }
  write.reports.resize(1);
  ASSERT_TRUE(coordinator_->store().Write(id, write).ok());

  proto::GetJobRequest get;
  get.set_job_id(id);
  get.set_with_reports(true);
  proto::GetJobReply reply;
  ASSERT_TRUE(coordinator_->jobs().Get(get, &reply).ok());
  EXPECT_LT(reply.ByteSizeLong(), size_t{48} << 20);
  EXPECT_GT(reply.ByteSizeLong(), size_t{24} << 20);
  EXPECT_THAT(reply.messages(0).substr(0, 200), HasSubstr(absl::StrCat("espalier logs ", id)));
  EXPECT_THAT(reply.messages().rbegin()->substr(0, 3), "39.");

  proto::WatchRequest watch;
  watch.set_job_id(id);
  watch.set_no_follow(true);
  int messages = 0, reports = 0;
  const absl::Status status = coordinator_->jobs().Watch(
      watch,
      [&](const proto::JobEvent& event) {
        messages += !event.message().empty();
        reports += event.has_step();
        return true;
      },
      [] { return false; });
  EXPECT_TRUE(status.ok()) << status << ": the job is not over, what there is was sent";
  EXPECT_EQ(messages, kMessages);
  EXPECT_EQ(reports, 1);
}

TEST_F(CoordinatorTest, AJobSucceedsAndItsModelIsRegistered) {
  AddWorker();
  AddWorker();
  const std::string id = Submit(Submission());
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 1);
  EXPECT_EQ(reply.job().checkpoint_step(), kSteps);
  EXPECT_EQ(reply.job().plan().devices_size(), 2);
  EXPECT_EQ(reply.job().parameters(), 2 * 256 * 4);
  EXPECT_NEAR(reply.job().evaluation().at("loss"), 1.0, 1e-9);
  EXPECT_THAT(reply.job().measured_peak_bytes(), ::testing::ElementsAre(1000, 1001));
  auto artifact = coordinator_->artifacts().Find(reply.job().output_model());
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(artifact->kind(), proto::Artifact::MODEL);
  EXPECT_THAT(artifact->files(), ::testing::Contains("model.safetensors"));
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(CheckpointsOf(id)); }))
      << "the model is there: its checkpoints only take room";
  EXPECT_THAT(coordinator_->metrics().Expose(), HasSubstr("espalier_jobs{state=\"succeeded\"} 1"));
}

TEST_F(CoordinatorTest, AQueuedJobWaitsForAWorkerAndAWatchSeesItsWholeLife) {
  const std::string id = Submit(Submission());
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(Get(id).job().state(), proto::QUEUED);
  grpc::ClientContext context;
  proto::WatchRequest request;
  request.set_job_id(id);
  auto stream = training_->Watch(&context, request);
  std::vector<proto::JobState> states;
  int64_t next_step = 0;
  proto::JobEvent event;
  bool more = stream->Read(&event);  // the watch has begun
  AddWorker();
  for (; more; more = stream->Read(&event)) {
    if (event.has_step()) {
      EXPECT_EQ(event.step().step(), next_step++);
    }
    if (event.has_job() && (states.empty() || states.back() != event.job().state())) {
      states.push_back(event.job().state());
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(next_step, kSteps);
  ASSERT_GE(states.size(), 2u);
  EXPECT_EQ(states.front(), proto::QUEUED);
  EXPECT_EQ(states.back(), proto::SUCCEEDED);
}

TEST_F(CoordinatorTest, WhenAWorkerDiesTheJobGoesOnFromItsCheckpointOnTheOther) {
  AddWorker({.step = absl::Milliseconds(15)});
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 20; });
  workers_[1]->Kill();
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 2);
  EXPECT_EQ(reply.job().plan().devices_size(), 1) << "replanned on the worker that is left";
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
  EXPECT_EQ(workers_[0]->first_step_of_last_run() % 10, 0);
  EXPECT_THAT(coordinator_->metrics().Expose(), HasSubstr("\nespalier_workers_lost_total 1\n"));
  EXPECT_THAT(reply.messages(),
              ::testing::Contains(::testing::AllOf(HasSubstr("fake-2"), HasSubstr("going back"))));
}

// What it needs comes back when the lost worker is replaced: until then others have their turns.
TEST_F(CoordinatorTest, AJobThatNeedsTheMemoryOfAllItsWorkersWaitsForALostOneToBeReplaced) {
  AddWorker();
  AddWorker();
  const proto::Plan roomy = WaitForEnd(Submit(Submission())).job().plan();
  ASSERT_EQ(roomy.devices_size(), 2);
  const int64_t of_half_a_batch = roomy.prediction().peak_bytes(0) * 5 / 4;
  workers_.clear();
  ASSERT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 0; }));
  AddWorker({.step = absl::Milliseconds(15), .memory_bytes = of_half_a_batch});
  AddWorker({.step = absl::Milliseconds(15), .memory_bytes = of_half_a_batch});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 20; });
  workers_[1]->Kill();
  const auto waits = [&] {
    const auto messages = Get(id).messages();
    return std::any_of(messages.begin(), messages.end(), [](const std::string& message) {
      return absl::StrContains(message, "the memory of 1 of 2 workers is not enough; waiting");
    });
  };
  ASSERT_TRUE(Eventually(waits)) << Get(id).job().error();
  EXPECT_EQ(Get(id).job().state(), proto::RECOVERING);
  proto::SubmitRequest small = Submission();
  small.mutable_spec()->set_batch_size(1);
  EXPECT_EQ(WaitForEnd(Submit(small)).job().state(), proto::SUCCEEDED) << "it is not waited with";
  EXPECT_EQ(Get(id).job().attempts(), 2) << "one that is in vain is not tried again";

  AddWorker({.step = absl::Milliseconds(15), .memory_bytes = of_half_a_batch});
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 3);
  EXPECT_EQ(reply.job().plan().devices_size(), 2);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
}

TEST_F(CoordinatorTest, AFrozenWorkerIsGivenUpWhenItsLeaseRunsOut) {
  AddWorker({.step = absl::Milliseconds(15)});
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 10; });
  workers_[1]->Freeze();
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(reply.job().attempts(), 2);
}

TEST_F(CoordinatorTest, ARestartedCoordinatorGoesOnFromTheCheckpoint) {
  AddWorker({.step = absl::Milliseconds(15)});
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 20; });
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 2);
  // The other one may have come back too late to take part.
  EXPECT_GE(std::max(workers_[0]->first_step_of_last_run(), workers_[1]->first_step_of_last_run()),
            20);
  EXPECT_THAT(reply.messages(), ::testing::Contains(HasSubstr("coordinator was started again")));
}

TEST_F(CoordinatorTest, TheJobsOwnErrorFailsItAtOnceWithItsText) {
  AddWorker({.fail_at = 7, .failure = absl::InvalidArgumentError("node 'x': NaN in column 'a'")});
  AddWorker();
  const proto::GetJobReply reply = WaitForEnd(Submit(Submission()));
  EXPECT_EQ(reply.job().state(), proto::FAILED);
  EXPECT_EQ(reply.job().attempts(), 1);
  EXPECT_THAT(reply.job().error(), HasSubstr("node 'x': NaN in column 'a'"));
  EXPECT_EQ(coordinator_->workers().Idle().size(), 2u) << "the workers are free again";
}

TEST_F(CoordinatorTest, AttemptsWithoutProgressEndTheJobWithTheirReasons) {
  AddWorker({.fail_at = 3, .failure = absl::UnavailableError("a peer was lost")});
  const proto::GetJobReply reply = WaitForEnd(Submit(Submission()));
  EXPECT_EQ(reply.job().state(), proto::FAILED);
  EXPECT_EQ(reply.job().attempts(), 3);
  EXPECT_THAT(reply.job().error(), HasSubstr("attempt 3: "));
  EXPECT_THAT(reply.job().error(), HasSubstr("a peer was lost"));
}

TEST_F(CoordinatorTest, ACancelledJobStopsItsWorkersAndCanBeResumed) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 10; });
  EXPECT_EQ(Cancel(id).job().state(), proto::CANCELLED);
  Resume(id);
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 10);
}

TEST_F(CoordinatorTest, CancelledAndResumedWhileAManifestIsWrittenItGoesOnFromWhatIsWhole) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 20; });
  files_.Hold("manifest.json");
  ASSERT_TRUE(Eventually([&] { return files_.held() == 1; }));
  Cancel(id);
  Resume(id);
  files_.LetGo();
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
}

TEST_F(CoordinatorTest, CancelledWhileItsModelIsWrittenItLeavesNone) {
  AddWorker();
  proto::SubmitRequest request = Submission();
  request.mutable_spec()->set_output_model("mine");
  files_.Hold("model.safetensors");
  const std::string id = Submit(request);
  ASSERT_TRUE(Eventually([&] { return files_.held() == 1; }));
  EXPECT_EQ(Cancel(id).job().state(), proto::CANCELLED);
  files_.LetGo();
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Idle().size() == 1; }));
  EXPECT_EQ(coordinator_->artifacts().Find("mine").status().code(), absl::StatusCode::kNotFound);
  Resume(id);
  EXPECT_EQ(WaitForEnd(id).job().state(), proto::SUCCEEDED);
  EXPECT_TRUE(coordinator_->artifacts().Find("mine").ok());
}

TEST_F(CoordinatorTest, AJobThatCanBeResumedKeepsItsLastCheckpointAndNothingElse) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 20; });
  // As a worker leaves it that was killed while it wrote.
  const std::string torn = CheckpointsOf(id) + "/attempt-1/step-9999";
  std::filesystem::create_directories(torn);
  std::ofstream(torn + "/rank-0.safetensors.tmp") << "half";
  Cancel(id);
  ASSERT_TRUE(Eventually([&] { return !std::filesystem::exists(torn); }));
  int manifests = 0, shards = 0, others = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(CheckpointsOf(id))) {
    if (entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    ++(name == "manifest.json" ? manifests : name == "rank-0.safetensors" ? shards : others);
  }
  EXPECT_EQ(manifests, 1);
  EXPECT_EQ(shards, 1);
  EXPECT_EQ(others, 0);
  Resume(id);
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(CheckpointsOf(id)); }));
}

// A link is one of the ways in which a folder has two names.
TEST_F(CoordinatorTest, AJobRecoversWhereItsDataFolderIsSpelledOtherwise) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 20; });
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  std::filesystem::remove(data_dir_ + "-link");
  std::filesystem::create_symlink(data_dir_, data_dir_ + "-link");
  data_dir_ += "-link/./";
  StartCoordinator(address);
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
}

TEST_F(CoordinatorTest, AJobRecoversAfterItsDataFolderWasMoved) {
  AddWorker({.step = absl::Milliseconds(15)});
  for (const bool earlier_release : {false, true}) {
    SCOPED_TRACE(earlier_release);
    const std::string id = Submit(Submission());
    WaitFor(id, [](const proto::Job& job) { return job.checkpoint_step() >= 20; });
    const std::string address = coordinator_->grpc_address();
    const std::string before = CheckpointsOf(id);
    coordinator_.reset();
    const std::string moved = data_dir_ + "-moved";
    std::filesystem::remove_all(moved);
    std::filesystem::rename(data_dir_, moved);
    data_dir_ = moved;
    if (earlier_release) {
      // Which kept whole paths.
      auto store = SqliteStore::Open(data_dir_ + "/espalier.db");
      ASSERT_TRUE(store.ok()) << store.status();
      absl::StatusOr<JobRecord> record = (*store)->Get(id);
      ASSERT_TRUE(record.ok()) << record.status();
      record->checkpoint_dir = before + "/" + record->checkpoint_dir;
      JobWrite write;
      write.job = *record;
      ASSERT_TRUE((*store)->Write(id, write).ok());
    }
    StartCoordinator(address);
    const proto::GetJobReply reply = WaitForEnd(id);
    ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
    ExpectWholeCurve(reply);
    EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
  }
}

TEST_F(CoordinatorTest, AWorkerThatDoesNotStopInTimeGetsNoWorkUntilItIsFree) {
  FakeWorker& worker = AddWorker({.step = absl::Milliseconds(15)});
  const std::string first = Submit(Submission());
  WaitFor(first, [](const proto::Job& job) { return job.steps_done() >= 1; });
  worker.Hold();
  Cancel(first);
  const std::string second = Submit(Submission());
  const auto state = [&] { return Get(second).job().state(); };
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 0; }));
  EXPECT_EQ(state(), proto::QUEUED);
  worker.LetGo();
  const proto::GetJobReply reply = WaitForEnd(second);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 1);
}

TEST_F(CoordinatorTest, AJobForMoreWorkersThanThereAreLetsOthersGoFirstAndIsNotStarvedByThem) {
  AddWorker();
  AddWorker();
  proto::SubmitRequest for_two = Submission();
  *for_two.mutable_spec()->mutable_search()->mutable_imported() =
      WaitForEnd(Submit(Submission())).job().plan();
  for_two.mutable_spec()->mutable_search()->set_strategy(proto::SearchOptions::IMPORTED);
  workers_[1]->Kill();
  ASSERT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 1; }));

  const std::string large = Submit(for_two);
  EXPECT_EQ(WaitForEnd(Submit(Submission())).job().state(), proto::SUCCEEDED);
  proto::GetJobReply waits = Get(large);
  EXPECT_EQ(waits.job().state(), proto::QUEUED);
  EXPECT_THAT(waits.messages(), ::testing::ElementsAre(HasSubstr("is for 2 workers")));

  // From the moment when there are two, though one still trains, it is the next.
  workers_[0]->Hold();
  const std::string running = Submit(Submission());
  WaitFor(running, [](const proto::Job& job) { return job.state() == proto::RUNNING; });
  AddWorker();
  const std::string small = Submit(Submission());
  workers_[0]->LetGo();
  EXPECT_EQ(WaitForEnd(small).job().state(), proto::SUCCEEDED);
  EXPECT_EQ(Get(running).job().state(), proto::SUCCEEDED);
  const proto::Job done = Get(large).job();
  EXPECT_EQ(done.state(), proto::SUCCEEDED) << "the small one has overtaken it";
  EXPECT_EQ(done.plan().devices_size(), 2);
}

TEST_F(CoordinatorTest, AFullDiskFailsTheJobWithItsReasonAndItIsResumedOnceThereIsRoom) {
  AddWorker();
  files_.set_free_bytes(0);
  const std::string id = Submit(Submission());
  proto::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), proto::FAILED);
  EXPECT_THAT(reply.job().error(), HasSubstr("No space left"));
  EXPECT_EQ(reply.job().checkpoint_step(), 0) << "a checkpoint without its manifest is none";
  files_.set_free_bytes(int64_t{1} << 40);
  Resume(id);
  reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
}

TEST_F(CoordinatorTest, ARepeatedSubmissionIsOneJob) {
  proto::SubmitRequest request = Submission();
  request.set_idempotency_key("once");
  EXPECT_EQ(Submit(request), Submit(request));
  request.mutable_spec()->set_steps(7);
  grpc::ClientContext context;
  proto::SubmitReply reply;
  EXPECT_EQ(training_->Submit(&context, request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CoordinatorTest, BadSubmissionsAreAnsweredWithThePlaceAndTheDaemonLivesOn) {
  auto refuse = [&](proto::SubmitRequest request, const std::string& expected) {
    grpc::ClientContext context;
    proto::SubmitReply reply;
    grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_FALSE(status.ok()) << expected;
    EXPECT_THAT(status.error_message(), HasSubstr(expected));
    return status.error_code();
  };
  proto::SubmitRequest request = Submission();
  request.mutable_spec()->set_batch_size(0);
  refuse(request, "batch_size");
  request = Submission();
  request.mutable_spec()->set_batch_size(4096);
  refuse(request, "batch_size");
  request = Submission();
  request.mutable_spec()->set_epochs(2);
  refuse(request, "epochs, steps");
  request = Submission();
  (*request.mutable_spec()->mutable_dataset()->mutable_columns())["nothing"] = "tokens";
  refuse(request, "no input 'nothing'");
  request = Submission();
  (*request.mutable_spec()->mutable_dataset()->mutable_columns())["tokens"] = "words";
  refuse(request, "graph input 'tokens'");
  request = Submission();
  request.mutable_spec()->mutable_dataset()->set_sequence_length(9);
  refuse(request, "must agree");
  request = Submission();
  request.mutable_spec()->mutable_dataset()->set_uri("artifact:none");
  refuse(request, "no artifact 'none'");
  request = Submission();
  request.mutable_spec()->mutable_graph()->mutable_nodes(0)->set_op("frobnicate");
  refuse(request, "frobnicate");
  request = Submission();
  request.mutable_spec()->set_output_model("../x");
  refuse(request, "output_model");
  request = Submission();
  request.mutable_spec()->mutable_optimizer()->clear_name();
  refuse(request, "optimizer.name");
  request = Submission();
  request.mutable_spec()->set_name(std::string(257, 'x'));
  EXPECT_EQ(refuse(request, "spec.name: at most 256 bytes"), grpc::StatusCode::INVALID_ARGUMENT);
  proto::ListJobsReply jobs;
  grpc::ClientContext context;
  ASSERT_TRUE(training_->List(&context, {}, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
}

// It is shown, and no file is called so.
TEST_F(CoordinatorTest, AJobMayBeNamedLikeAPath) {
  AddWorker();
  proto::SubmitRequest request = Submission();
  const std::string name = "../../etc/of-a-job";
  request.mutable_spec()->set_name(name);
  const std::string id = Submit(request);
  const proto::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), proto::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().spec().name(), name);
  EXPECT_TRUE(coordinator_->artifacts().Find(reply.job().output_model()).ok());
  for (const char* folder : {"", "/checkpoints/", "/artifacts/"}) {
    EXPECT_FALSE(std::filesystem::exists(absl::StrCat(data_dir_, folder, "/", name))) << folder;
  }
}

TEST_F(CoordinatorTest, ValuesThatNoEnumHasAreRefusedWithTheirField) {
  constexpr int kUnknown = 77;
  const std::pair<const char*, std::function<void(proto::TrainingSpec*)>> fields[] = {
      {"dataset.format",
       [](proto::TrainingSpec* spec) {
         spec->mutable_dataset()->set_format(static_cast<proto::Dataset::Format>(kUnknown));
       }},
      {"search.strategy",
       [](proto::TrainingSpec* spec) {
         spec->mutable_search()->set_strategy(
             static_cast<proto::SearchOptions::Strategy>(kUnknown));
       }},
      {"precision",
       [](proto::TrainingSpec* spec) {
         spec->set_precision(static_cast<proto::DataType>(kUnknown));
       }},
      {"initializer.kind",
       [](proto::TrainingSpec* spec) {
         spec->mutable_graph()->mutable_values(0)->mutable_initializer()->set_kind(
             static_cast<proto::Initializer::Kind>(kUnknown));
       }},
      {"learning_rate.kind", [](proto::TrainingSpec* spec) {
         spec->mutable_optimizer()->mutable_learning_rate()->set_kind(
             static_cast<proto::LearningRateSchedule::Kind>(kUnknown));
       }}};
  for (const auto& [field, set] : fields) {
    proto::SubmitRequest request = Submission();
    set(request.mutable_spec());
    grpc::ClientContext context;
    proto::SubmitReply reply;
    const grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_THAT(status.error_message(), HasSubstr(field));
  }
}

TEST_F(CoordinatorTest, UploadsAndDownloadsGoThroughWhole) {
  std::string content(1'500'000, 'x');
  content[777'777] = 'y';
  grpc::ClientContext upload_context;
  proto::UploadReply uploaded;
  auto upload = models_->Upload(&upload_context, &uploaded);
  proto::UploadRequest part;
  part.mutable_header()->set_name("d");
  part.mutable_header()->set_kind(proto::Artifact::DATASET);
  upload->Write(part);
  part.mutable_file()->set_name("data.npz");
  upload->Write(part);
  for (size_t at = 0; at < content.size(); at += 700'000) {
    part.set_chunk(content.substr(at, 700'000));
    upload->Write(part);
  }
  upload->WritesDone();
  grpc::Status status = upload->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(uploaded.artifact().bytes(), 1'500'000);

  grpc::ClientContext download_context;
  proto::DownloadRequest request;
  request.set_name("d");
  auto download = models_->Get(&download_context, request);
  std::string received;
  proto::DownloadReply reply;
  while (download->Read(&reply)) received += reply.chunk();
  EXPECT_TRUE(download->Finish().ok());
  EXPECT_EQ(received, content);
}

// Other content was answered with the artifact of the first upload, and dropped.
TEST_F(CoordinatorTest, ARepeatedUploadIsOneArtifactAndOtherFilesAreRefused) {
  const auto upload = [&](const std::string& file, const std::string& content,
                          proto::UploadReply* reply) {
    grpc::ClientContext context;
    auto writer = models_->Upload(&context, reply);
    proto::UploadRequest part;
    part.mutable_header()->set_name("d");
    part.mutable_header()->set_kind(proto::Artifact::DATASET);
    part.mutable_header()->set_idempotency_key("once");
    writer->Write(part);
    part.mutable_file()->set_name(file);
    writer->Write(part);
    part.set_chunk(content);
    writer->Write(part);
    writer->WritesDone();
    return writer->Finish();
  };
  proto::UploadReply first, again;
  ASSERT_TRUE(upload("a.txt", "one", &first).ok());
  const grpc::Status repeated = upload("a.txt", "one", &again);
  ASSERT_TRUE(repeated.ok()) << repeated.error_message();
  EXPECT_EQ(again.SerializeAsString(), first.SerializeAsString());
  for (const auto& [file, content] : {std::pair("a.txt", "two"), std::pair("b.txt", "one")}) {
    const grpc::Status changed = upload(file, content, &again);
    EXPECT_EQ(changed.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << file << content;
    EXPECT_THAT(changed.error_message(), HasSubstr("another request"));
  }
  const auto kept = coordinator_->artifacts().Find("d");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->sha256(), first.artifact().sha256());
  EXPECT_TRUE(std::filesystem::is_empty(data_dir_ + "/artifacts/incoming"));
}

TEST_F(CoordinatorTest, AKeyStandsForOneCallWhateverTheCall) {
  const std::string kept = Submit(Submission());
  proto::CancelRequest cancel;
  cancel.set_job_id(Submit(Submission()));
  cancel.set_idempotency_key("once");
  for (const bool other_job : {false, false, true}) {
    if (other_job) cancel.set_job_id(kept);
    grpc::ClientContext context;
    proto::CancelReply reply;
    EXPECT_EQ(training_->Cancel(&context, cancel, &reply).error_code(),
              other_job ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::OK);
  }
  EXPECT_EQ(Get(kept).job().state(), proto::QUEUED);
  proto::DeleteArtifactRequest remove;
  remove.set_name("d");
  remove.set_idempotency_key("once");
  grpc::ClientContext delete_context;
  proto::DeleteArtifactReply removed;
  EXPECT_EQ(models_->Delete(&delete_context, remove, &removed).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  proto::QuantizeRequest quantize;
  quantize.set_name("d");
  quantize.set_idempotency_key("once");
  grpc::ClientContext quantize_context;
  proto::QuantizeReply progress;
  const auto reader = models_->Quantize(&quantize_context, quantize);
  EXPECT_FALSE(reader->Read(&progress));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CoordinatorTest, AMessageOverTheLimitIsRefusedAndTheDaemonLivesOn) {
  proto::SubmitRequest request = Submission();
  request.mutable_spec()->set_name(std::string(65 << 20, 'x'));
  grpc::ClientContext context;
  proto::SubmitReply reply;
  grpc::Status status = training_->Submit(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("larger than max"));
  EXPECT_FALSE(Submit(Submission()).empty());
}

// Local workers, which have no certificates and are not --insecure, talk over loopback alone.
TEST_F(CoordinatorTest, WorkersOfThisMachineReachItOverLoopbackWhereverItListens) {
  // What is 127.0.0.1 by another name counts as an address off loopback.
  for (const auto& [listen, second] :
       {std::pair("[::ffff:127.0.0.1]:0", true), std::pair("0.0.0.0:0", false),
        std::pair("127.0.0.1:0", false), std::pair("localhost:0", false)}) {
    SCOPED_TRACE(listen);
    coordinator_.reset();
    StartCoordinator(listen, {.loopback_port = true});
    const std::string address = coordinator_->loopback_address();
    EXPECT_TRUE(IsLoopback(address)) << address;
    const auto port = [](const std::string& of) { return of.substr(of.rfind(':')); };
    EXPECT_EQ(port(address) != port(coordinator_->grpc_address()), second) << address;
    for (const std::string& door : {address, coordinator_->grpc_address()}) {
      const auto stub =
          proto::Cluster::NewStub(grpc::CreateChannel(door, grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      proto::ClusterStatusReply reply;
      const grpc::Status status = stub->Status(&context, {}, &reply);
      EXPECT_TRUE(status.ok()) << door << ": " << status.error_message();
    }
  }
  coordinator_.reset();
  StartCoordinator("[::ffff:127.0.0.1]:0");
  EXPECT_EQ(coordinator_->loopback_address(), "") << "nobody asked for another port";
}

TEST_F(CoordinatorTest, AStaleLeaseIsRefused) {
  grpc::ClientContext context;
  proto::HeartbeatRequest request;
  request.mutable_lease()->set_worker_id("w1");
  request.mutable_lease()->set_epoch(99);
  proto::HeartbeatReply reply;
  EXPECT_EQ(cluster_->Heartbeat(&context, request, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace espalier
