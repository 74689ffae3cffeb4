// Distillation runs that are cancelled, resumed and recorded, on a coordinator without workers: the
// training jobs that they submit stay queued.
#include "server/distillation/distillation_run.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/artifacts/artifact_store.h"
#include "server/coordinator.h"
#include "server/distillation/distillation_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kConfig[] = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
  "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
  "max_position_embeddings": 64, "tie_word_embeddings": true, "hidden_act": "silu",
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0})";

class DistillationRunTest : public ::testing::Test {
 protected:
  DistillationRunTest() {
    CoordinatorOptions options;
    options.data_dir = ::testing::TempDir() + "/boost_run_" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(options.data_dir);
    auto opened = Coordinator::Open(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    tools_.operators = &coordinator_->operators();
    tools_.artifacts = &coordinator_->artifacts();
    tools_.store = &coordinator_->store();
    tools_.jobs = &coordinator_->jobs();
    tools_.clock = &clock_;
    tools_.describe = [](const std::string&) {
      ModelDescription llm;
      llm.model.facts.tokenizer = "bytes";
      return llm;
    };
    job_.set_id("boost-1");
    v1::DistillationSpec& spec = *job_.mutable_spec();
    spec.set_name("small");
    spec.set_llm("large");
    spec.add_ssms()->set_config(kConfig);
    spec.set_sample_tokens(2);
    spec.set_epochs(1);
    spec.set_batch_size(1);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->mutable_learning_rate()->set_peak(0.1);
    job_.add_ssms()->set_output("small-1");
    v1::DistillationPrompts prompts;
    v1::DistillationPrompt* prompt = prompts.add_prompts();
    for (const int token : {1, 2}) prompt->add_prompt(token);
    for (const int token : {3, 4, 5, 6}) prompt->add_continuation(token);
    prompt->set_continued(true);
    EXPECT_TRUE(
        tools_.store->PutBlob(DistillationPromptsBlob("boost-1"), prompts.SerializeAsString())
            .ok());
  }

  std::vector<v1::JobState> Training() {
    v1::ListJobsReply reply;
    EXPECT_TRUE(coordinator_->jobs().List({}, Caller::Unrestricted(), &reply).ok());
    std::vector<v1::JobState> states;
    for (const v1::Job& job : reply.jobs()) states.push_back(job.state());
    return states;
  }

  void Put(const std::string& name, v1::Artifact::Kind kind, const std::string& content) {
    auto upload = tools_.artifacts->Begin({name, kind, {}, ""}, /*replace=*/false);
    ASSERT_TRUE(upload.ok()) << upload.status();
    ASSERT_TRUE((*upload)->StartFile("file").ok());
    ASSERT_TRUE((*upload)->Append(content).ok());
    const absl::Status committed = (*upload)->Commit().status();
    ASSERT_TRUE(committed.ok()) << committed;
  }

  std::unique_ptr<Coordinator> coordinator_;
  SystemClock clock_;
  DistillationDependencies tools_;
  v1::DistillationJob job_;
};

TEST_F(DistillationRunTest, ACancelledRunSubmitsNoTraining) {
  DistillationRun run(
      tools_, job_,
      {.save = [](const v1::DistillationJob&) { return absl::OkStatus(); },
       .progress = [](const std::string&, int64_t,
                      int64_t) { return absl::CancelledError("it was cancelled"); }});
  EXPECT_TRUE(absl::IsCancelled(run.Run()));
  EXPECT_THAT(Training(), IsEmpty());
}

// Regression: the training job's id was not recorded yet, so a cancel could not cancel it.
TEST_F(DistillationRunTest, TrainingSubmittedDuringCancelIsCancelledAndResumed) {
  const auto going = [](const std::string&, int64_t, int64_t) { return absl::OkStatus(); };
  const auto cancelled = [](const v1::DistillationJob& job) {
    return job.ssms(0).job_id().empty() ? absl::OkStatus() : absl::CancelledError("cancelled");
  };
  DistillationRun run(tools_, job_, {.save = cancelled, .progress = going});
  EXPECT_TRUE(absl::IsCancelled(run.Run()));
  EXPECT_THAT(Training(), ElementsAre(v1::CANCELLED));

  bool known = false;
  DistillationRun again(tools_, job_,
                        {.save =
                             [&](const v1::DistillationJob& job) {
                               known = !job.ssms(0).job_id().empty();
                               return absl::OkStatus();
                             },
                         .progress =
                             [&](const std::string&, int64_t, int64_t) {
                               return known ? absl::UnavailableError("stopping") : absl::OkStatus();
                             }});
  const absl::Status status = again.Run();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  ASSERT_EQ(Training().size(), 1u) << "it is the same one";
  EXPECT_NE(Training()[0], v1::CANCELLED);
}

TEST_F(DistillationRunTest, ATuningIsNotResumedWhileAnotherOneWritesItsModels) {
  v1::DistillationRecords records;
  job_.set_state(v1::DISTILLATION_CANCELLED);
  *records.add_jobs() = job_;
  job_.set_id("boost-2");
  job_.set_state(v1::DISTILLATION_QUEUED);
  *records.add_jobs() = job_;
  ASSERT_TRUE(tools_.store->PutBlob("distillation", records.SerializeAsString()).ok());
  DistillationRunner runner(tools_);
  ASSERT_TRUE(runner.Open().ok());
  v1::DistillationRequest request;
  request.set_id("boost-1");
  v1::DistillationReply reply;
  const absl::Status status = runner.Resume(request, &reply);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("boost-2"));
  request.set_id("boost-2");
  ASSERT_TRUE(runner.Cancel(request, &reply).ok());
  EXPECT_TRUE(runner.Resume(request, &reply).ok());
}

// Regression: another spec with the same key was answered with the first job.
TEST_F(DistillationRunTest, AnIdempotencyKeyGivesOneRunAndRefusesAnotherSpec) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  tools_.files = files.get();
  tools_.describe = [](const std::string&) {
    ModelDescription llm;
    llm.model.facts.vocab_size = 32;
    llm.model.facts.max_positions = 64;
    llm.tokenizer = std::make_shared<LetterTokenizer>(32);
    return llm;
  };
  ASSERT_NO_FATAL_FAILURE(Put("large", v1::Artifact::MODEL, "{}"));
  ASSERT_NO_FATAL_FAILURE(Put("texts", v1::Artifact::DATASET, R"(["ab", "cd", "ef"])"));
  v1::SubmitDistillationRequest request;
  request.set_idempotency_key("once");
  v1::DistillationSpec& spec = *request.mutable_spec();
  spec = job_.spec();
  spec.set_prompts("texts");
  spec.set_prompt_tokens(8);
  spec.set_continuation_tokens(8);

  v1::DistillationReply first, again;
  {
    DistillationRunner runner(tools_);
    ASSERT_TRUE(runner.Open().ok());
    const absl::Status status = runner.Submit(request, "", &first);
    ASSERT_TRUE(status.ok()) << status;
  }
  DistillationRunner runner(tools_);
  ASSERT_TRUE(runner.Open().ok());
  const absl::Status repeated = runner.Submit(request, "", &again);
  ASSERT_TRUE(repeated.ok()) << repeated;
  EXPECT_EQ(again.job().id(), first.job().id());

  const auto refused = [&](const v1::SubmitDistillationRequest& changed) {
    const absl::Status status = runner.Submit(changed, "", &again);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("another request"));
  };
  v1::SubmitDistillationRequest other = request;
  other.mutable_spec()->set_seed(7);
  refused(other);
  other.mutable_spec()->clear_name();
  refused(other);
  v1::ListDistillationsReply all;
  ASSERT_TRUE(runner.List(&all).ok());
  EXPECT_EQ(all.jobs_size(), 1);
}

// Regression: it was taken for LIST.
TEST_F(DistillationRunTest, AnUnknownPromptFormatIsRefused) {
  DistillationRunner runner(tools_);
  ASSERT_TRUE(runner.Open().ok());
  v1::SubmitDistillationRequest request;
  *request.mutable_spec() = job_.spec();
  request.mutable_spec()->set_prompts("texts");
  request.mutable_spec()->set_prompt_format(static_cast<v1::DistillationSpec::PromptFormat>(77));
  v1::DistillationReply reply;
  const absl::Status status = runner.Submit(request, "", &reply);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("prompt_format"));
}

TEST(DistillationWrites, TakeAtMostATwentiethOfTheTime) {
  EXPECT_EQ(PauseBetweenWrites(absl::ZeroDuration()), absl::Seconds(2));
  for (const absl::Duration taken : {absl::Milliseconds(200), absl::Seconds(3)}) {
    EXPECT_LE(20 * taken, taken + PauseBetweenWrites(taken));
  }
  EXPECT_LT(PauseBetweenWrites(absl::Seconds(3)), absl::Minutes(1)) << "all that can be lost";
}

}  // namespace
}  // namespace espalier
