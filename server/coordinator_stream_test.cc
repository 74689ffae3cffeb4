// Jobs whose examples the client pushes while they train: the wait for them, the end, a full
// backlog, and what is kept when workers die and the coordinator is started again.
#include <gmock/gmock.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/coordinator_fixture.h"
#include "server/fake_worker.h"
#include "server/metrics/metrics.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 4;
constexpr int64_t kSequence = 8;

class StreamTest : public CoordinatorFixture {
 protected:
  v1::SubmitRequest Streamed() {
    v1::SubmitRequest request = Submission();
    v1::Dataset* const dataset = request.mutable_spec()->mutable_dataset();
    dataset->Clear();
    dataset->set_format(v1::Dataset::STREAM);
    return request;
  }

  static v1::PushExamplesRequest Examples(const std::string& id, int64_t first, int64_t steps,
                                          bool end = false) {
    v1::PushExamplesRequest request;
    request.set_job_id(id);
    request.set_first_step(first);
    request.set_end(end);
    for (const char* column : {"tokens", "targets"}) {
      if (steps == 0) continue;
      v1::TensorValue& value = (*request.mutable_columns())[column];
      value.set_dtype(v1::I32);
      value.add_dims(steps * kBatch);
      value.add_dims(kSequence);
      std::string* const data = value.mutable_data();
      data->resize(static_cast<size_t>(steps * kBatch * kSequence * 4));
      for (size_t i = 0; i < data->size(); i += 4) (*data)[i] = static_cast<char>(first % 100);
    }
    return request;
  }

  grpc::Status Push(const v1::PushExamplesRequest& request, v1::PushExamplesReply* reply) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const auto writer = training_->PushExamples(&context, reply);
    writer->Write(request);
    writer->WritesDone();
    return writer->Finish();
  }
  v1::PushExamplesReply Push(const v1::PushExamplesRequest& request) {
    v1::PushExamplesReply reply;
    const grpc::Status status = Push(request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  std::string Refused(const v1::PushExamplesRequest& request, grpc::StatusCode code) {
    v1::PushExamplesReply reply;
    const grpc::Status status = Push(request, &reply);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  }

  void WaitForSteps(const std::string& id, int64_t steps) {
    WaitFor(id, [steps](const v1::Job& job) { return job.steps_done() >= steps; });
  }

  void Restart() {
    const std::string address = coordinator_->grpc_address();
    coordinator_.reset();
    StartCoordinator(address);
  }

  bool HasStream(const std::string& id) const {
    return std::filesystem::exists(CheckpointsOf(id) + "/stream");
  }
};

// They would be lost with the coordinator that leads.
TEST_F(StreamTest, AJobIsRefusedWhereItsExamplesDoNotLast) {
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  CoordinatorOptions options;
  options.keeps_pushed_examples = false;
  StartCoordinator(address, options);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  v1::SubmitReply reply;
  const grpc::Status refused = training_->Submit(&context, Streamed(), &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("upload the examples as a dataset"));
  AddWorker();
  EXPECT_EQ(WaitForEnd(Submit(Submission())).job().state(), v1::SUCCEEDED);
}

TEST_F(StreamTest, TrainsWhatHasComeAndWaitsForMore) {
  AddWorker();
  AddWorker();
  const std::string id = Submit(Streamed());
  EXPECT_EQ(Push(Examples(id, 0, 7)).steps_pushed(), 7);
  Push(Examples(id, 7, 3));
  WaitForSteps(id, 10);
  WaitFor(id, [](const v1::Job& job) { return job.steps_pushed() == 10; });
  EXPECT_TRUE(Eventually([&] {
    const v1::GetJobReply reply = Get(id);
    for (const v1::JobMessage& message : reply.messages()) {
      if (message.text() == "waits for the examples of step 10") return true;
    }
    return false;
  }));
  EXPECT_EQ(Get(id).job().state(), v1::RUNNING);
  EXPECT_EQ(Get(id).job().steps_done(), 10);
  Push(Examples(id, 10, 1));
  Push(Examples(id, 11, 40));
  Push(Examples(id, 51, kSteps - 51));
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_FALSE(reply.job().stopped_early());
  EXPECT_THAT(coordinator_->metrics().Expose(), HasSubstr("espalier_job_batches_pushed_total 60"));
  EXPECT_TRUE(Eventually([&] { return !HasStream(id); })) << "nobody needs them any more";
  EXPECT_THAT(Refused(Examples(id, kSteps, 1), grpc::StatusCode::FAILED_PRECONDITION),
              HasSubstr("is succeeded and takes no examples"));
}

TEST_F(StreamTest, TrainsOnWhileTheStoreWritesACheckpoint) {
  AddWorker();
  AddWorker();
  for (const auto& worker : workers_) worker->HoldShards();
  v1::SubmitRequest request = Streamed();
  request.mutable_spec()->mutable_record()->set_mode(v1::RecordOptions::OFF);  // a fixed period
  const std::string id = Submit(request);
  Push(Examples(id, 0, 10));
  WaitForSteps(id, 10);
  Push(Examples(id, 10, 5));
  WaitForSteps(id, 15);
  workers_[0]->ReleaseShards();
  Push(Examples(id, 15, 1));
  WaitForSteps(id, 16);
  EXPECT_EQ(Get(id).job().checkpoint_step(), 0) << "one of its shards is not written";
  // It becomes durable while no examples come.
  workers_[1]->ReleaseShards();
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() == 10; });
  EXPECT_EQ(Get(id).job().steps_done(), 16);
  // At the end it waits for the last one.
  for (const auto& worker : workers_) worker->HoldShards();
  Push(Examples(id, 16, 5, /*end=*/true));
  WaitForSteps(id, 21);
  for (const auto& worker : workers_) worker->ReleaseShards();
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().checkpoint_step(), 21);
}

TEST_F(StreamTest, AStreamThatEndsEarlierEndsTheJobThere) {
  AddWorker();
  const std::string id = Submit(Streamed());
  Push(Examples(id, 0, 20));
  WaitForSteps(id, 20);
  EXPECT_TRUE(Push(Examples(id, 20, 5, /*end=*/true)).ended());
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().steps_done(), 25);
  EXPECT_EQ(reply.job().total_steps(), kSteps);
  EXPECT_TRUE(reply.job().stopped_early());
  EXPECT_EQ(reply.job().checkpoint_step(), 25);
  EXPECT_THAT(
      reply.messages(),
      Contains(Says(v1::JobMessage::INFO,
                    HasSubstr("stopped early after 25 of 60 steps: its examples have ended"))));
}

TEST_F(StreamTest, AnEndThatComesLaterEndsAJobThatWaits) {
  AddWorker();
  const std::string id = Submit(Streamed());
  Push(Examples(id, 0, 20));
  WaitForSteps(id, 20);
  Push(Examples(id, 20, 0, /*end=*/true));
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().steps_done(), 20);
  const std::string empty = Submit(Streamed());
  Push(Examples(empty, 0, 0, /*end=*/true));
  const v1::GetJobReply nothing = WaitForEnd(empty);
  EXPECT_EQ(nothing.job().state(), v1::FAILED);
  EXPECT_THAT(nothing.job().error(), HasSubstr("nothing to train on"));
}

TEST_F(StreamTest, IntegersThatTheModelHasNoPlaceForAreRefusedAndNothingIsKept) {
  AddWorker();
  v1::SubmitRequest request = Streamed();
  v1::ExampleStream* const stream = request.mutable_spec()->mutable_dataset()->mutable_stream();
  (*stream->mutable_ranges())["tokens"].add_ranges()->set_high(1 << 20);
  (*stream->mutable_ranges())["other"].add_ranges();
  const std::string id = Submit(request);
  const auto ranges = Get(id).job().spec().dataset().stream().ranges();
  EXPECT_EQ(ranges.size(), 2u) << "of tokens and targets, not what the client said";
  ASSERT_EQ(ranges.at("tokens").ranges_size(), 1);
  EXPECT_EQ(ranges.at("tokens").ranges(0).high(), 255);
  Push(Examples(id, 0, 2));
  v1::PushExamplesRequest bad = Examples(id, 2, 2);
  // The second byte of an i32: 2 becomes 258.
  (*bad.mutable_columns())["targets"].mutable_data()->at((kBatch + 1) * kSequence * 4 + 1) = 1;
  const std::string refusal =
      "batch of step 3: column 'targets': example 1, element 0 is 258; accepted are 0 to 255, and "
      "-100, which is ignored, by node 'sparse_categorical_crossentropy";
  EXPECT_THAT(Refused(bad, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr(refusal));
  Restart();
  EXPECT_EQ(Get(id).job().steps_pushed(), 2);
  EXPECT_THAT(Refused(bad, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr(refusal));
  v1::PushExamplesRequest worse = Examples(id, 2, 1);
  (*worse.mutable_columns())["tokens"].mutable_data()->at(3) = '\xff';
  EXPECT_THAT(Refused(worse, grpc::StatusCode::INVALID_ARGUMENT),
              HasSubstr("accepted are 0 to 255, by node 'embedding"));
  Push(Examples(id, 2, kSteps - 2));
  EXPECT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
}

TEST_F(StreamTest, ABacklogThatStaysFullTakesNothing) {
  v1::SubmitRequest request = Streamed();
  request.mutable_spec()->mutable_dataset()->mutable_stream()->set_backlog(8);
  const std::string id = Submit(request);  // there is no worker yet
  Push(Examples(id, 0, 6));
  const v1::PushExamplesReply full = Push(Examples(id, 6, 3));
  EXPECT_TRUE(full.full());
  EXPECT_EQ(full.steps_pushed(), 6);
  EXPECT_FALSE(Push(Examples(id, 6, 2)).full());
  AddWorker();
  EXPECT_FALSE(Push(Examples(id, 8, 8)).full()) << "it waits until there is room";
  EXPECT_THAT(Refused(Examples(id, 16, 9), grpc::StatusCode::INVALID_ARGUMENT),
              HasSubstr("at most 8 may wait"));
  Cancel(id);
}

TEST_F(StreamTest, ARestartedCoordinatorAndALostWorkerChangeNothing) {
  AddWorker();
  AddWorker();
  const std::string id = Submit(Streamed());
  Push(Examples(id, 0, 25));
  WaitForSteps(id, 25);
  workers_[1]->Kill();
  Push(Examples(id, 25, 9));
  WaitForSteps(id, 34);
  Restart();
  EXPECT_EQ(Get(id).job().steps_pushed(), 34);
  // The answer to this call was lost, as far as the client knows.
  EXPECT_EQ(Push(Examples(id, 25, 9)).steps_pushed(), 34);
  Push(Examples(id, 34, kSteps - 34));
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
}

TEST_F(StreamTest, WithoutExamplesTheJobFailsAndCanBeResumed) {
  AddWorker();
  v1::SubmitRequest request = Streamed();
  request.mutable_spec()->mutable_dataset()->mutable_stream()->set_timeout_seconds(0.3);
  const std::string id = Submit(request);
  Push(Examples(id, 0, 15));
  v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::FAILED);
  EXPECT_THAT(reply.job().error(), HasSubstr("no examples of step 15 came for 300ms"));
  EXPECT_EQ(reply.job().checkpoint_step(), 15) << "no step need be repeated";
  EXPECT_TRUE(HasStream(id));
  EXPECT_THAT(Refused(Examples(id, 15, 5), grpc::StatusCode::FAILED_PRECONDITION),
              HasSubstr("go on pushing those of step 15"));
  Resume(id);
  Push(Examples(id, 15, kSteps - 15));
  reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
}

TEST_F(StreamTest, ACancelledJobStopsWaitingAndKeepsItsExamples) {
  AddWorker();
  const std::string id = Submit(Streamed());
  Push(Examples(id, 0, 4));
  WaitForSteps(id, 4);
  const absl::Time begin = absl::Now();
  Cancel(id);
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Idle().size() == 1; }));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_TRUE(HasStream(id)) << "it can be resumed, from step 0";
  Resume(id);
  Push(Examples(id, 4, 6, /*end=*/true));
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.reports_size(), 10);
}

TEST_F(StreamTest, WhatCannotBeIsRefused) {
  const auto refusal = [this](const std::function<void(v1::TrainingSpec*)>& change) {
    v1::SubmitRequest request = Streamed();
    change(request.mutable_spec());
    grpc::ClientContext context;
    v1::SubmitReply reply;
    const grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  };
  EXPECT_THAT(refusal([](v1::TrainingSpec* spec) {
                spec->clear_steps();
                spec->set_epochs(2);
              }),
              HasSubstr("a STREAM needs steps"));
  EXPECT_THAT(refusal([](auto* spec) { spec->mutable_dataset()->set_uri("/x"); }),
              HasSubstr("dataset.uri: a STREAM has none"));
  EXPECT_THAT(refusal([](auto* spec) { spec->mutable_dataset()->set_holdout_fraction(0.1); }),
              HasSubstr("dataset.holdout_fraction"));
  EXPECT_THAT(refusal([](auto* spec) { spec->mutable_dataset()->set_shuffle(true); }),
              HasSubstr("shuffle them before"));
  EXPECT_THAT(
      refusal([](auto* spec) { spec->mutable_dataset()->mutable_stream()->set_backlog(-1); }),
      HasSubstr("dataset.stream.backlog"));
  EXPECT_THAT(refusal([](auto* spec) {
                spec->mutable_dataset()->mutable_stream()->set_timeout_seconds(-1);
              }),
              HasSubstr("dataset.stream.timeout_seconds"));
  EXPECT_THAT(refusal([this](auto* spec) {
                spec->mutable_validation()->mutable_dataset()->set_uri(text_);
                spec->mutable_validation()->mutable_dataset()->set_format(v1::Dataset::TEXT);
              }),
              HasSubstr("must be NPZ, as dataset is a STREAM"));
  EXPECT_THAT(refusal([](auto* spec) {
                v1::TensorType& type =
                    (*spec->mutable_dataset()->mutable_stream()->mutable_columns())["tokens"];
                type.set_dtype(v1::I32);
                type.add_dims(9);
              }),
              HasSubstr("graph input 'tokens'"));

  const std::string other = Submit(Submission());
  EXPECT_THAT(Refused(Examples(other, 0, 1), grpc::StatusCode::FAILED_PRECONDITION),
              HasSubstr("has a dataset"));
  Refused(Examples("job-77", 0, 1), grpc::StatusCode::NOT_FOUND);
  const std::string id = Submit(Streamed());
  EXPECT_EQ(Get(id).job().spec().dataset().stream().columns().at("tokens").dims(0), kSequence);
  EXPECT_THAT(Refused(Examples(id, 3, 1), grpc::StatusCode::OUT_OF_RANGE),
              HasSubstr("those of step 0"));
  EXPECT_THAT(Refused(Examples(id, 0, 0), grpc::StatusCode::INVALID_ARGUMENT),
              HasSubstr("no examples, and no end"));
  v1::PushExamplesRequest lacks = Examples(id, 0, 1);
  lacks.mutable_columns()->erase("targets");
  EXPECT_THAT(Refused(lacks, grpc::StatusCode::INVALID_ARGUMENT),
              HasSubstr("column 'targets' is missing"));
  Push(Examples(id, 0, 1));
  v1::PushExamplesRequest others = Examples(id, 0, 1);
  (*others.mutable_columns())["tokens"].mutable_data()->at(0) = '\7';
  EXPECT_THAT(Refused(others, grpc::StatusCode::ALREADY_EXISTS), HasSubstr("those of step 1"));
}

}  // namespace
}  // namespace espalier
