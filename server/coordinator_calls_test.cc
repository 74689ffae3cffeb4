// Refused calls, repeated calls, and uploads.
#include <gmock/gmock.h>

#include <functional>

#include "server/artifacts/artifact_store.h"
#include "server/coordinator_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

using CoordinatorCallsTest = CoordinatorFixture;

TEST_F(CoordinatorCallsTest, ARepeatedSubmissionIsOneJob) {
  v1::SubmitRequest request = Submission();
  request.set_idempotency_key("once");
  EXPECT_EQ(Submit(request), Submit(request));
  request.mutable_spec()->set_steps(7);
  grpc::ClientContext context;
  v1::SubmitReply reply;
  EXPECT_EQ(training_->Submit(&context, request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CoordinatorCallsTest, BadSubmissionsGetErrorsNamingTheField) {
  auto refuse = [&](v1::SubmitRequest request, const std::string& expected) {
    grpc::ClientContext context;
    v1::SubmitReply reply;
    grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_FALSE(status.ok()) << expected;
    EXPECT_THAT(status.error_message(), HasSubstr(expected));
    return status.error_code();
  };
  v1::SubmitRequest request = Submission();
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
  v1::ListJobsReply jobs;
  grpc::ClientContext context;
  ASSERT_TRUE(training_->List(&context, {}, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
}

// A trained model can repeat its dataset: a client that may train on it may read it.
TEST_F(CoordinatorCallsTest, JobsReadFilesBeneathTheDatasetRootsAndNoOthers) {
  const std::string key = ::testing::TempDir() + "/the-keys", link = ::testing::TempDir() + "/link";
  std::ofstream(key) << std::string(4096, 'k');
  std::filesystem::remove(link);
  std::filesystem::create_symlink("/etc/passwd", link);
  coordinator_.reset();
  StartCoordinator("127.0.0.1:0", {.private_files = {key}});
  AddWorker();
  v1::SubmitRequest request = Submission();
  for (const std::string& path :
       {std::string("/etc/passwd"), std::string("/etc/none"), std::string("/proc/self/environ"),
        key, link, data_dir_ + "/espalier.db", text_ + "/../../../etc/passwd"}) {
    request.mutable_spec()->mutable_dataset()->set_uri(path);
    grpc::ClientContext submit, dry_run;
    v1::SubmitReply reply;
    const grpc::Status status = training_->Submit(&submit, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << path;
    EXPECT_THAT(status.error_message(), HasSubstr("--dataset-root"));
    v1::DryRunRequest question;
    *question.mutable_spec() = request.spec();
    v1::DryRunReply answer;
    ASSERT_TRUE(training_->DryRun(&dry_run, question, &answer).ok());
    EXPECT_THAT(answer.problems(), ::testing::Contains(HasSubstr("--dataset-root"))) << path;
  }
  request.mutable_spec()->mutable_dataset()->set_uri(text_);
  EXPECT_EQ(WaitForEnd(Submit(request)).job().state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorCallsTest, DataFolderIsClosedToOtherUsers) {
  using std::filesystem::perms;
  coordinator_.reset();
  std::filesystem::permissions(data_dir_, perms(0755));
  StartCoordinator("127.0.0.1:0");
  EXPECT_EQ(std::filesystem::status(data_dir_).permissions(), perms(0700));
}

// The name is only shown; no file is named after it.
TEST_F(CoordinatorCallsTest, APipelineLargerThanTheClusterIsRefused) {
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->mutable_search()->set_strategy(v1::SearchOptions::SEARCH);
  request.mutable_spec()->mutable_search()->set_pipeline_stages(3);
  Cancel(Submit(request));  // no worker has joined yet: the size of the cluster is not known
  AddWorker();
  AddWorker();
  grpc::ClientContext context;
  v1::SubmitReply reply;
  const grpc::Status refused = training_->Submit(&context, request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(),
              ::testing::HasSubstr("pipeline_stages: 3 stages need as many workers, and 2"));
}

TEST_F(CoordinatorCallsTest, ASecondJobOfTheSameNameLeavesTheFirstOnesModel) {
  AddWorker();
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_output_model("mine");
  EXPECT_EQ(WaitForEnd(Submit(request)).job().output_model(), "mine");
  const std::string first = coordinator_->artifacts().Find("mine")->metadata().at("job");
  const v1::GetJobReply second = WaitForEnd(Submit(request));
  EXPECT_EQ(second.job().output_model(), "mine@2");
  EXPECT_THAT(
      second.messages(),
      ::testing::Contains(Says(v1::JobMessage::INFO, ::testing::HasSubstr("'mine' now means it"))));
  EXPECT_EQ(coordinator_->artifacts().Find("mine@1")->metadata().at("job"), first);
  EXPECT_EQ(coordinator_->artifacts().Find("mine")->metadata().at("job"), second.job().id());
}

TEST_F(CoordinatorCallsTest, WhatAJobNeedsCannotBeDeletedUntilItIsOver) {
  AddWorker();
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_output_model("start");
  WaitForEnd(Submit(request));
  workers_[0]->Stall();
  request = Submission();
  request.mutable_spec()->set_init_artifact("start");
  const std::string id = Submit(request);
  const absl::Status refused = coordinator_->artifacts().Delete("start", nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("espalier jobs cancel " + id));
  workers_[0]->Unstall();
  ASSERT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
  // Its recording begins with these values.
  const absl::Status recorded = coordinator_->artifacts().Delete("start", nullptr);
  EXPECT_EQ(recorded.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(recorded.message(), ::testing::HasSubstr("espalier models delete --force start"));
  EXPECT_EQ(coordinator_->artifacts().Delete("start", nullptr, {.force = true}), absl::OkStatus());
}

TEST_F(CoordinatorCallsTest, JobNameMayLookLikeAPath) {
  AddWorker();
  v1::SubmitRequest request = Submission();
  const std::string name = "../../etc/of-a-job";
  request.mutable_spec()->set_name(name);
  const std::string id = Submit(request);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().spec().name(), name);
  EXPECT_TRUE(coordinator_->artifacts().Find(reply.job().output_model()).ok());
  for (const char* folder : {"", "/checkpoints/", "/artifacts/"}) {
    EXPECT_FALSE(std::filesystem::exists(absl::StrCat(data_dir_, folder, "/", name))) << folder;
  }
}

TEST_F(CoordinatorCallsTest, UnknownEnumValuesAreRefused) {
  constexpr int kUnknown = 77;
  const std::pair<const char*, std::function<void(v1::TrainingSpec*)>> fields[] = {
      {"dataset.format",
       [](v1::TrainingSpec* spec) {
         spec->mutable_dataset()->set_format(static_cast<v1::Dataset::Format>(kUnknown));
       }},
      {"search.strategy",
       [](v1::TrainingSpec* spec) {
         spec->mutable_search()->set_strategy(static_cast<v1::SearchOptions::Strategy>(kUnknown));
       }},
      {"precision",
       [](v1::TrainingSpec* spec) { spec->set_precision(static_cast<v1::DataType>(kUnknown)); }},
      {"initializer.kind",
       [](v1::TrainingSpec* spec) {
         spec->mutable_graph()->mutable_values(0)->mutable_initializer()->set_kind(
             static_cast<v1::Initializer::Kind>(kUnknown));
       }},
      {"learning_rate.kind", [](v1::TrainingSpec* spec) {
         spec->mutable_optimizer()->mutable_learning_rate()->set_kind(
             static_cast<v1::LearningRateSchedule::Kind>(kUnknown));
       }}};
  for (const auto& [field, set] : fields) {
    v1::SubmitRequest request = Submission();
    set(request.mutable_spec());
    grpc::ClientContext context;
    v1::SubmitReply reply;
    const grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_THAT(status.error_message(), HasSubstr(field));
  }
}

TEST_F(CoordinatorCallsTest, UploadsAndDownloadsGoThroughWhole) {
  std::string content(1'500'000, 'x');
  content[777'777] = 'y';
  grpc::ClientContext upload_context;
  v1::UploadReply uploaded;
  auto upload = models_->Upload(&upload_context, &uploaded);
  v1::UploadRequest part;
  part.mutable_header()->set_name("d");
  part.mutable_header()->set_kind(v1::Artifact::DATASET);
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
  v1::DownloadRequest request;
  request.set_name("d");
  auto download = models_->Get(&download_context, request);
  std::string received;
  v1::DownloadReply reply;
  while (download->Read(&reply)) received += reply.chunk();
  EXPECT_TRUE(download->Finish().ok());
  EXPECT_EQ(received, content);
}

// Regression: other content got the first upload's artifact as its answer and was dropped.
TEST_F(CoordinatorCallsTest, RepeatedUploadIsOneArtifactOtherFilesAreRefused) {
  const auto upload = [&](const std::string& file, const std::string& content,
                          v1::UploadReply* reply) {
    grpc::ClientContext context;
    auto writer = models_->Upload(&context, reply);
    v1::UploadRequest part;
    part.mutable_header()->set_name("d");
    part.mutable_header()->set_kind(v1::Artifact::DATASET);
    part.mutable_header()->set_idempotency_key("once");
    writer->Write(part);
    part.mutable_file()->set_name(file);
    writer->Write(part);
    part.set_chunk(content);
    writer->Write(part);
    writer->WritesDone();
    return writer->Finish();
  };
  v1::UploadReply first, again;
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

TEST_F(CoordinatorCallsTest, IdempotencyKeyIsBoundToOneCall) {
  const std::string kept = Submit(Submission());
  v1::CancelRequest cancel;
  cancel.set_job_id(Submit(Submission()));
  cancel.set_idempotency_key("once");
  for (const bool other_job : {false, false, true}) {
    if (other_job) cancel.set_job_id(kept);
    grpc::ClientContext context;
    v1::CancelReply reply;
    EXPECT_EQ(training_->Cancel(&context, cancel, &reply).error_code(),
              other_job ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::OK);
  }
  EXPECT_EQ(Get(kept).job().state(), v1::QUEUED);
  v1::DeleteArtifactRequest remove;
  remove.set_name("d");
  remove.set_idempotency_key("once");
  grpc::ClientContext delete_context;
  v1::DeleteArtifactReply removed;
  EXPECT_EQ(models_->Delete(&delete_context, remove, &removed).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::QuantizeRequest quantize;
  quantize.set_name("d");
  quantize.set_idempotency_key("once");
  grpc::ClientContext quantize_context;
  v1::QuantizeReply progress;
  const auto reader = models_->Quantize(&quantize_context, quantize);
  EXPECT_FALSE(reader->Read(&progress));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CoordinatorCallsTest, MessageOverLimitIsRefused) {
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_name(std::string(65 << 20, 'x'));
  grpc::ClientContext context;
  v1::SubmitReply reply;
  grpc::Status status = training_->Submit(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("larger than max"));
  EXPECT_FALSE(Submit(Submission()).empty());
}

TEST_F(CoordinatorCallsTest, AStaleLeaseIsRefused) {
  grpc::ClientContext context;
  v1::HeartbeatRequest request;
  request.mutable_lease()->set_worker_id("w1");
  request.mutable_lease()->set_epoch(99);
  v1::HeartbeatReply reply;
  EXPECT_EQ(cluster_->Heartbeat(&context, request, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace espalier
