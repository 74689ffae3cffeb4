// An in-process coordinator for tests, with fake workers over real gRPC.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/testing/faulty_file_system.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "espalier/v1/models.grpc.pb.h"
#include "espalier/v1/training.grpc.pb.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "server/coordinator.h"
#include "server/fake_worker.h"
#include "server/membership/worker_registry.h"

namespace espalier {

class CoordinatorFixture : public ::testing::Test {
 protected:
  // Matches a JobMessage; `text`: a matcher.
  template <typename Matcher>
  static ::testing::Matcher<const v1::JobMessage&> Says(v1::JobMessage::Level level, Matcher text) {
    return ::testing::AllOf(::testing::Property("level", &v1::JobMessage::level, level),
                            ::testing::Property("text", &v1::JobMessage::text, text));
  }

  static constexpr int64_t kSteps = 60;  // of the job of Submission()

  void SetUp() override {
    const char* const test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    data_dir_ = absl::StrCat(::testing::TempDir(), "/coordinator_",
                             absl::StrReplaceAll(test, {{"/", "_"}}));
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
    options.dataset_roots = {::testing::TempDir()};
    options.listen = listen;
    options.lease = absl::Seconds(3);
    options.recovery_grace_period = grace_;
    options.grow_after = options.grow_if_left = absl::ZeroDuration();
    options.max_attempts_without_progress = 3;
    options.file_system = &files_;
    auto opened = Coordinator::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    absl::Status started = coordinator_->Start();
    ASSERT_TRUE(started.ok()) << started;
    auto channel =
        grpc::CreateChannel(coordinator_->grpc_address(), grpc::InsecureChannelCredentials());
    training_ = v1::Training::NewStub(channel);
    cluster_ = v1::Cluster::NewStub(channel);
    models_ = v1::Models::NewStub(channel);
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

  // A next-byte model on a text of 4 KiB.
  v1::SubmitRequest Submission() {
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
    v1::SubmitRequest request;
    v1::TrainingSpec* spec = request.mutable_spec();
    spec->set_name("tiny");
    *spec->mutable_graph() = ToProto(*graph);
    spec->mutable_dataset()->set_uri(text_);
    spec->mutable_dataset()->set_format(v1::Dataset::TEXT);
    spec->mutable_dataset()->set_sequence_length(8);
    spec->mutable_dataset()->set_holdout_fraction(0.1);
    spec->set_batch_size(4);
    spec->set_steps(kSteps);
    spec->set_checkpoint_every_steps(10);
    spec->mutable_optimizer()->set_name("sgd");
    spec->mutable_optimizer()->mutable_learning_rate()->set_peak(0.1);
    spec->mutable_search()->set_strategy(v1::SearchOptions::DATA_PARALLEL);
    return request;
  }

  // The same without a recording: none of its checkpoints stays once it has succeeded.
  v1::SubmitRequest Unrecorded() {
    v1::SubmitRequest request = Submission();
    request.mutable_spec()->mutable_record()->set_mode(v1::RecordOptions::OFF);
    return request;
  }

  // The same with the checkpoints of each period, and no others.
  v1::SubmitRequest Recorded() {
    v1::SubmitRequest request = Submission();
    v1::TrainingSpec* spec = request.mutable_spec();
    spec->mutable_record()->set_mode(v1::RecordOptions::EVERY);
    spec->mutable_record()->set_every_steps(spec->checkpoint_every_steps());
    return request;
  }

  std::string Submit(const v1::SubmitRequest& request) {
    grpc::ClientContext context;
    v1::SubmitReply reply;
    grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.job_id();
  }

  v1::CancelReply Cancel(const std::string& id) {
    grpc::ClientContext context;
    v1::CancelRequest request;
    request.set_job_id(id);
    v1::CancelReply reply;
    grpc::Status status = training_->Cancel(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  void Resume(const std::string& id) {
    grpc::ClientContext context;
    v1::ResumeRequest request;
    request.set_job_id(id);
    v1::ResumeReply reply;
    grpc::Status status = training_->Resume(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  v1::GetJobReply Get(const std::string& id) {
    grpc::ClientContext context;
    // channels to one address share their backoff after a restart
    context.set_wait_for_ready(true);
    v1::GetJobRequest request;
    request.set_job_id(id);
    request.set_with_reports(true);
    v1::GetJobReply reply;
    EXPECT_TRUE(training_->Get(&context, request, &reply).ok());
    return reply;
  }

  // Polls until `done`, at most 30 seconds.
  template <typename Done>
  v1::GetJobReply WaitFor(const std::string& id, Done done) {
    v1::GetJobReply reply;
    for (int i = 0; i < 1500; ++i) {
      reply = Get(id);
      if (done(reply.job())) return reply;
      absl::SleepFor(absl::Milliseconds(20));
    }
    ADD_FAILURE() << "waited in vain; state " << v1::JobState_Name(reply.job().state()) << " steps "
                  << reply.job().steps_done() << " " << reply.job().error();
    return reply;
  }
  v1::GetJobReply WaitForEnd(const std::string& id) {
    return WaitFor(id, [](const v1::Job& job) { return job.state() >= v1::SUCCEEDED; });
  }

  // Returns true if `condition` holds within 30 seconds.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 1500 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(20));
    return condition();
  }

  std::string CheckpointsOf(const std::string& id) const {
    return data_dir_ + "/checkpoints/" + id;
  }

  // Expects every step once, in order, with the loss of an undisturbed run.
  static void ExpectWholeCurve(const v1::GetJobReply& reply) {
    ASSERT_EQ(reply.reports_size(), kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(reply.reports(static_cast<int>(step)).step(), step);
      EXPECT_NEAR(reply.reports(static_cast<int>(step)).values().at("loss"),
                  FakeWorker::LossOf(step), 1e-9);
    }
  }

  absl::Duration grace_ = absl::Milliseconds(300);  // CoordinatorOptions::recovery_grace_period
  std::string data_dir_, text_;
  FaultyFileSystem files_{NewPosixFileSystem()};
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<v1::Training::Stub> training_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
  std::unique_ptr<v1::Models::Stub> models_;
};

}  // namespace espalier
