// Jobs in a coordinator whose workers die, freeze and come back.
#include <gmock/gmock.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/net/transport_security.h"
#include "server/artifacts/artifact_store.h"
#include "server/coordinator_fixture.h"
#include "server/fake_worker.h"
#include "server/jobs/job_runner.h"
#include "server/store/job_store.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

using CoordinatorTest = CoordinatorFixture;

// Regression: the reports of a million steps did not fit into one message.
TEST_F(CoordinatorTest, GetReturnsNewestReportsAndWatchReturnsAll) {
  const std::string id = Submit(Submission());  // queued: there is no worker
  constexpr int kMessages = 40;
  JobWrite write;
  for (int i = 0; i < kMessages; ++i) {
    write.messages.emplace_back().set_text(absl::StrCat(i, std::string(1 << 20, '.')));
  }
  write.reports.resize(1);
  ASSERT_TRUE(coordinator_->store().Write(id, write).ok());

  v1::GetJobRequest get;
  get.set_job_id(id);
  get.set_with_reports(true);
  v1::GetJobReply reply;
  ASSERT_TRUE(coordinator_->jobs().Get(get, &reply).ok());
  EXPECT_LT(reply.ByteSizeLong(), size_t{48} << 20);
  EXPECT_GT(reply.ByteSizeLong(), size_t{24} << 20);
  EXPECT_THAT(reply.messages(0).text().substr(0, 200),
              HasSubstr(absl::StrCat("espalier logs ", id)));
  EXPECT_THAT(reply.messages().rbegin()->text().substr(0, 3), "39.");

  v1::WatchRequest watch;
  watch.set_job_id(id);
  watch.set_no_follow(true);
  int messages = 0, reports = 0;
  const absl::Status status = coordinator_->jobs().Watch(
      watch,
      [&](const v1::JobEvent& event) {
        messages += event.has_message();
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
  const std::string id = Submit(Unrecorded());
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 1);
  EXPECT_EQ(reply.job().checkpoint_step(), kSteps);
  EXPECT_EQ(reply.job().plan().devices_size(), 2);
  EXPECT_EQ(reply.job().parameters(), 2 * 256 * 4);
  EXPECT_NEAR(reply.job().evaluation().at("loss"), 1.0, 1e-9);
  EXPECT_THAT(reply.job().measured_peak_bytes(), ::testing::ElementsAre(1000, 1001));
  auto artifact = coordinator_->artifacts().Find(reply.job().output_model());
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(artifact->kind(), v1::Artifact::MODEL);
  EXPECT_THAT(artifact->files(), ::testing::Contains("model.safetensors"));
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(CheckpointsOf(id)); }))
      << "the model is there: its checkpoints only take room";
  EXPECT_THAT(coordinator_->metrics().Expose(), HasSubstr("espalier_jobs{state=\"succeeded\"} 1"));
}

TEST_F(CoordinatorTest, QueuedJobWaitsForWorkerAndWatchSeesAllStates) {
  const std::string id = Submit(Submission());
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(Get(id).job().state(), v1::QUEUED);
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_job_id(id);
  auto stream = training_->Watch(&context, request);
  std::vector<v1::JobState> states;
  int64_t next_step = 0;
  v1::JobEvent event;
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
  EXPECT_EQ(states.front(), v1::QUEUED);
  EXPECT_EQ(states.back(), v1::SUCCEEDED);
}

TEST_F(CoordinatorTest, AJobSaysWhyItWaits) {
  const auto says = [this](const std::string& id, const std::string& text) {
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (absl::Now() < give_up) {
      const v1::GetJobReply reply = Get(id);
      for (const v1::JobMessage& message : reply.messages()) {
        if (message.text() == text && message.level() == v1::JobMessage::INFO) return true;
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  };
  const std::string first = Submit(Submission());
  EXPECT_TRUE(says(first, "waits for a worker: none has joined"));
  AddWorker();
  EXPECT_EQ(WaitForEnd(first).job().state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorTest, JobContinuesFromCheckpointWhenWorkerDies) {
  AddWorker({.step = absl::Milliseconds(15)});
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  workers_[1]->Kill();
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 2);
  EXPECT_EQ(reply.job().plan().devices_size(), 1) << "replanned on the worker that is left";
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
  EXPECT_EQ(workers_[0]->first_step_of_last_run() % 10, 0);
  EXPECT_THAT(coordinator_->metrics().Expose(), HasSubstr("\nespalier_workers_lost_total 1\n"));
  EXPECT_THAT(
      reply.messages(),
      ::testing::Contains(Says(v1::JobMessage::WARNING,
                               ::testing::AllOf(HasSubstr("fake-2"), HasSubstr("going back")))));
}

TEST_F(CoordinatorTest, JobTakesWorkersBackAtACheckpoint) {
  AddWorker({.step = absl::Milliseconds(30)});
  AddWorker({.step = absl::Milliseconds(30)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 10; });
  workers_[1]->Kill();
  WaitFor(id, [](const v1::Job& job) { return job.attempts() == 2 && job.state() == v1::RUNNING; });
  AddWorker({.step = absl::Milliseconds(30)});
  AddWorker({.step = absl::Milliseconds(30)});
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 3);
  EXPECT_EQ(reply.job().plan().devices_size(), 2) << "as many as it had, not all";
  EXPECT_THAT(reply.messages(),
              ::testing::Contains(Says(v1::JobMessage::INFO, HasSubstr("1 more worker is idle"))));
}

TEST_F(CoordinatorTest, JobWaitsForItsLeastWorkers) {
  AddWorker();
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_min_devices(2);
  const std::string id = Submit(request);
  v1::GetJobReply reply = WaitForEnd(Submit(Submission()));
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << "a smaller job goes first";
  reply = Get(id);
  EXPECT_EQ(reply.job().state(), v1::QUEUED);
  EXPECT_THAT(reply.messages(),
              ::testing::ElementsAre(Says(v1::JobMessage::INFO, HasSubstr("at least 2 workers"))));
  AddWorker();
  reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED);
  EXPECT_EQ(reply.job().plan().devices_size(), 2);
}

TEST_F(CoordinatorTest, FrozenWorkerIsLostWhenLeaseExpires) {
  AddWorker({.step = absl::Milliseconds(15)});
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 10; });
  workers_[1]->Freeze();
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(reply.job().attempts(), 2);
}

TEST_F(CoordinatorTest, RestartedCoordinatorContinuesFromCheckpoint) {
  AddWorker({.step = absl::Milliseconds(15)});
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 2);
  // The other worker may have come back too late to take part.
  EXPECT_GE(std::max(workers_[0]->first_step_of_last_run(), workers_[1]->first_step_of_last_run()),
            20);
  EXPECT_THAT(reply.messages(),
              ::testing::Contains(
                  Says(v1::JobMessage::WARNING, HasSubstr("coordinator was started again"))));
}

// The first worker that joins again does not take a queued job alone.
TEST_F(CoordinatorTest, ARestartedCoordinatorGivesItsWorkersTimeToComeBack) {
  const std::string id = Submit(Submission());
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  grace_ = absl::Seconds(2);
  StartCoordinator(address);
  AddWorker();
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ(Get(id).job().state(), v1::QUEUED);
  AddWorker();
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().plan().devices_size(), 2);
  EXPECT_EQ(reply.job().most_workers(), 2);
}

TEST_F(CoordinatorTest, JobErrorFailsItAtOnce) {
  AddWorker({.fail_at = 7, .failure = absl::InvalidArgumentError("node 'x': NaN in column 'a'")});
  AddWorker();
  const v1::GetJobReply reply = WaitForEnd(Submit(Submission()));
  EXPECT_EQ(reply.job().state(), v1::FAILED);
  EXPECT_EQ(reply.job().attempts(), 1);
  EXPECT_THAT(reply.job().error(), HasSubstr("node 'x': NaN in column 'a'"));
  EXPECT_EQ(coordinator_->workers().Idle().size(), 2u) << "the workers are free again";
}

TEST_F(CoordinatorTest, JobFailsAfterAttemptsWithoutProgress) {
  AddWorker({.fail_at = 3, .failure = absl::UnavailableError("a peer was lost")});
  const v1::GetJobReply reply = WaitForEnd(Submit(Submission()));
  EXPECT_EQ(reply.job().state(), v1::FAILED);
  EXPECT_EQ(reply.job().attempts(), 3);
  EXPECT_THAT(reply.job().error(), HasSubstr("attempt 3: "));
  EXPECT_THAT(reply.job().error(), HasSubstr("a peer was lost"));
}

TEST_F(CoordinatorTest, CancelledJobStopsWorkersAndCanResume) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 10; });
  EXPECT_EQ(Cancel(id).job().state(), v1::CANCELLED);
  Resume(id);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 10);
}

TEST_F(CoordinatorTest, ResumeDuringManifestWriteContinuesFromCompleteCheckpoint) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  files_.Hold("manifest.json");
  ASSERT_TRUE(Eventually([&] { return files_.held() == 1; }));
  Cancel(id);
  Resume(id);
  files_.Release();
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
}

// While the model is written, and while it is hashed: both take long for a large model.
TEST_F(CoordinatorTest, CancelDuringExportRegistersNoModel) {
  AddWorker();
  int number = 0;
  for (const auto& [file, call] : {std::pair("model.safetensors", FaultyFileSystem::Call::kCreate),
                                   std::pair("graph.pb", FaultyFileSystem::Call::kOpen)}) {
    SCOPED_TRACE(file);
    v1::SubmitRequest request = Submission();
    const std::string name = absl::StrCat("mine-", ++number);
    request.mutable_spec()->set_output_model(name);
    files_.Hold(file, call);
    const std::string id = Submit(request);
    ASSERT_TRUE(Eventually([&] { return files_.held() == 1; }));
    EXPECT_EQ(Cancel(id).job().state(), v1::CANCELLED);
    files_.Release();
    EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Idle().size() == 1; }));
    EXPECT_EQ(coordinator_->artifacts().Find(name).status().code(), absl::StatusCode::kNotFound);
    Resume(id);
    EXPECT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
    EXPECT_TRUE(coordinator_->artifacts().Find(name).ok());
  }
}

// The attempt can no longer be stopped, but its end must not end the job.
TEST_F(CoordinatorTest, ResumeDuringModelRegistrationContinuesFromCheckpoint) {
  AddWorker();
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_output_model("mine");
  files_.Hold("/mine@", FaultyFileSystem::Call::kRename);
  const std::string id = Submit(request);
  ASSERT_TRUE(Eventually([&] { return files_.held() == 1; }));
  Cancel(id);
  Resume(id);
  files_.Release();
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 2);
  EXPECT_EQ(workers_[0]->first_step_of_last_run(), kSteps) << "nothing is left to train";
  EXPECT_EQ(reply.job().output_model(), "mine");
  EXPECT_TRUE(coordinator_->artifacts().Find("mine").ok());
}

TEST_F(CoordinatorTest, ResumableJobKeepsItsLastTwoCheckpoints) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Unrecorded());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  // As left behind by a worker killed while writing.
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
  EXPECT_EQ(manifests, 2);
  EXPECT_EQ(shards, 2);
  EXPECT_EQ(others, 0);
  Resume(id);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(CheckpointsOf(id)); }));
}

// A symbolic link gives a folder a second name.
TEST_F(CoordinatorTest, JobRecoversIfDataFolderIsSpelledDifferently) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  std::filesystem::remove(data_dir_ + "-link");
  std::filesystem::create_symlink(data_dir_, data_dir_ + "-link");
  data_dir_ += "-link/./";
  StartCoordinator(address);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
}

TEST_F(CoordinatorTest, JobRecoversAfterDataFolderWasMoved) {
  AddWorker({.step = absl::Milliseconds(15)});
  for (const bool earlier_release : {false, true}) {
    SCOPED_TRACE(earlier_release);
    const std::string id = Submit(Submission());
    WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
    const std::string address = coordinator_->grpc_address();
    const std::string before = CheckpointsOf(id);
    coordinator_.reset();
    const std::string moved = data_dir_ + "-moved";
    std::filesystem::remove_all(moved);
    std::filesystem::rename(data_dir_, moved);
    data_dir_ = moved;
    if (earlier_release) {
      // An earlier release, which stored whole paths.
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
    const v1::GetJobReply reply = WaitForEnd(id);
    ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
    ExpectWholeCurve(reply);
    EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
  }
}

// As after a damaged store was moved away.
TEST_F(CoordinatorTest, CheckpointsOfUnknownJobsStayAndTheirIdsAreNotGivenAgain) {
  coordinator_.reset();
  const std::string checkpoints = data_dir_ + "/checkpoints/";
  for (const char* folder : {"job-41", "job-044", "other"}) {
    std::filesystem::create_directories(checkpoints + folder);
  }
  StartCoordinator("127.0.0.1:0");
  AddWorker();
  const std::string id = Submit(Submission());
  EXPECT_EQ(id, "job-42");
  EXPECT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
  for (const char* folder : {"job-41", "job-044", "other"}) {
    EXPECT_TRUE(std::filesystem::exists(checkpoints + folder)) << folder;
  }
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  std::filesystem::remove_all(checkpoints + "job-41");
  StartCoordinator(address);
  EXPECT_EQ(Submit(Submission()), "job-43");
}

TEST_F(CoordinatorTest, WorkerThatDoesNotStopGetsNoWorkUntilIdle) {
  FakeWorker& worker = AddWorker({.step = absl::Milliseconds(15)});
  const std::string first = Submit(Submission());
  WaitFor(first, [](const v1::Job& job) { return job.steps_done() >= 1; });
  worker.Stall();
  Cancel(first);
  const std::string second = Submit(Submission());
  const auto state = [&] { return Get(second).job().state(); };
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 0; }));
  EXPECT_EQ(state(), v1::QUEUED);
  worker.Unstall();
  const v1::GetJobReply reply = WaitForEnd(second);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 1);
}

TEST_F(CoordinatorTest, LargeJobYieldsButIsNotStarvedBySmallerJobs) {
  AddWorker();
  AddWorker();
  v1::SubmitRequest for_two = Submission();
  *for_two.mutable_spec()->mutable_search()->mutable_imported() =
      WaitForEnd(Submit(Submission())).job().plan();
  for_two.mutable_spec()->mutable_search()->set_strategy(v1::SearchOptions::IMPORTED);
  workers_[1]->Kill();
  ASSERT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 1; }));

  const std::string large = Submit(for_two);
  EXPECT_EQ(WaitForEnd(Submit(Submission())).job().state(), v1::SUCCEEDED);
  v1::GetJobReply waits = Get(large);
  EXPECT_EQ(waits.job().state(), v1::QUEUED);
  EXPECT_THAT(waits.messages(),
              ::testing::ElementsAre(Says(v1::JobMessage::INFO, HasSubstr("is for 2 workers"))));

  // Once there are two workers, one still training, this job is next.
  workers_[0]->Stall();
  const std::string running = Submit(Submission());
  WaitFor(running, [](const v1::Job& job) { return job.state() == v1::RUNNING; });
  AddWorker();
  const std::string small = Submit(Submission());
  workers_[0]->Unstall();
  EXPECT_EQ(WaitForEnd(small).job().state(), v1::SUCCEEDED);
  EXPECT_EQ(Get(running).job().state(), v1::SUCCEEDED);
  const v1::Job done = Get(large).job();
  EXPECT_EQ(done.state(), v1::SUCCEEDED) << "the small one has overtaken it";
  EXPECT_EQ(done.plan().devices_size(), 2);
}

// Local workers have no certificates and are not --insecure, so they connect over loopback only.
// Starts a worker that is not let in, and returns why.
std::string RefusalOf(FakeWorkerOptions options, Coordinator& coordinator) {
  options.coordinator = coordinator.grpc_address();
  options.name = "refused";
  const auto worker = FakeWorker::Start(options);
  for (int i = 0; i < 500 && worker->refusal().empty(); ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(coordinator.workers().Live(), 0);
  return worker->refusal();
}

TEST_F(CoordinatorTest, WorkerThatCannotBeReachedDoesNotJoin) {
  const std::string refusal = RefusalOf({.advertise = "127.0.0.1:1"}, *coordinator_);
  EXPECT_THAT(refusal, HasSubstr("cannot reach this worker at 127.0.0.1:1"));
  EXPECT_THAT(refusal, HasSubstr("--advertise"));
}

TEST_F(CoordinatorTest, LocalWorkersConnectOverLoopbackWhateverTheListenAddress) {
  // Another name of 127.0.0.1 counts as an address off loopback.
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
          v1::Cluster::NewStub(grpc::CreateChannel(door, grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      v1::ClusterStatusReply reply;
      const grpc::Status status = stub->Status(&context, {}, &reply);
      EXPECT_TRUE(status.ok()) << door << ": " << status.error_message();
    }
  }
  coordinator_.reset();
  StartCoordinator("[::ffff:127.0.0.1]:0");
  EXPECT_EQ(coordinator_->loopback_address(), "") << "nobody asked for another port";
}

}  // namespace
}  // namespace espalier
