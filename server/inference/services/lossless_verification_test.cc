// Lossless verification over gRPC: the reports for a lossless pair and for one that is not.
#include "server/inference/services/lossless_verification.h"

#include <grpcpp/grpcpp.h>

#include <functional>

#include "espalier/v1/inference.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/services/inference_service.h"
#include "server/metrics/metrics.h"
#include "server/services/call_interceptor.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kVocabulary = 12;

// Rows of a tree differ slightly, as with another order of summation.
class DriftingRunner : public FakeModelRunner {
 public:
  using FakeModelRunner::FakeModelRunner;
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    RunnerBatch shown = batch;
    shown.row_outputs.clear();
    absl::Status status = FakeModelRunner::Step(shown, logits);
    for (size_t i = 0; status.ok() && i < batch.logit_rows.size(); ++i) {
      const int row = batch.logit_rows[i];
      if (batch.ancestor_start[row + 1] - batch.ancestor_start[row] < 2) continue;
      for (int t = 0; t < kVocabulary; t += 2) logits->values[i * kVocabulary + t] += 0.8f;
    }
    return status;
  }
};

class Loader : public ModelLoader {
 public:
  absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>& ssms,
                              const ServingSize& size, const Expansion&, const Formats&,
                              const Placement&) override {
    if (llm == "missing") return absl::NotFoundError("artifact 'missing' is not there");
    RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
    limits.max_positions = 96;
    Loaded loaded;
    loaded.parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
    const FakeModel model = HashModel(1, kVocabulary, 4);
    loaded.parts.llm = llm == "drifting" ? std::make_unique<DriftingRunner>(limits, model)
                                         : std::make_unique<FakeModelRunner>(limits, model);
    for (size_t i = 0; i < ssms.size(); ++i) {
      loaded.parts.ssms.push_back(std::make_unique<FakeModelRunner>(
          limits, AgreeingModel(model, HashModel(2 + i, kVocabulary, 4), 0.7, 9)));
    }
    loaded.parameters = 1234;
    return loaded;
  }
};

v1::VerifyLosslessRequest Request(const std::string& llm) {
  v1::VerifyLosslessRequest request;
  request.mutable_models()->set_artifact(llm);
  request.mutable_models()->add_ssm_artifacts("small");
  for (int children : {1, 2, 1}) request.mutable_models()->add_expansion(children);
  for (const char* prompt : {"abc", "d", "efghijklabcdefghijkl"}) request.add_prompts(prompt);
  request.set_draws(6000);
  return request;
}

class LosslessVerificationTest : public ::testing::Test {
 protected:
  LosslessVerificationTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::Inference::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                       grpc::InsecureChannelCredentials()));
  }
  ~LosslessVerificationTest() override { server_->Shutdown(); }

  grpc::Status Verify(const v1::VerifyLosslessRequest& request, v1::LosslessReport* report,
                      std::vector<std::string>* stages = nullptr) {
    grpc::ClientContext context;
    auto reader = stub_->VerifyLossless(&context, request);
    v1::VerifyLosslessReply reply;
    while (reader->Read(&reply)) {
      if (reply.has_report()) *report = reply.report();
      if (stages == nullptr || !reply.has_progress()) continue;
      const std::string& stage = reply.progress().stage();
      if (stages->empty() || stages->back() != stage) stages->push_back(stage);
    }
    return reader->Finish();
  }

  Loader loader_;
  SystemClock clock_;
  ModelServer models_{{.loader = &loader_, .clock = &clock_}};
  Metrics metrics_;
  const AccessControl access_{nullptr};
  CallInterceptor interceptor_{&metrics_, &access_};
  std::unique_ptr<grpc::Service> service_ = NewInferenceService(&models_, &interceptor_, nullptr);
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(LosslessVerificationTest, LosslessPairPassesAndReportsProgress) {
  v1::LosslessReport report;
  std::vector<std::string> stages;
  const grpc::Status status = Verify(Request("good"), &report, &stages);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(report.passed()) << report.DebugString();
  std::vector<std::string> names;
  for (const auto& check : report.checks()) names.push_back(check.name());
  EXPECT_THAT(names,
              ElementsAre("greedy", "seeds", "penalties", "enumeration", "distribution", "KV"));
  EXPECT_THAT(stages, ElementsAre("loading", "greedy", "seeds", "penalties", "enumeration",
                                  "distribution", "KV"));
  EXPECT_GT(report.accepted_per_step(), 0.1);
  EXPECT_EQ(report.models().parameters(), 1234);
  EXPECT_EQ(report.models().max_sequence_length(), 96);
  EXPECT_TRUE(models_.List().empty());
}

TEST_F(LosslessVerificationTest, APairWhoseTreesChangeLogitsFails) {
  v1::LosslessReport report;
  const grpc::Status status = Verify(Request("drifting"), &report);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(report.passed());
  ASSERT_GE(report.checks_size(), 2);
  EXPECT_FALSE(report.checks(0).passed()) << report.DebugString();
  EXPECT_THAT(report.checks(0).detail(), HasSubstr("differs at token"));
}

TEST_F(LosslessVerificationTest, UnsupportedRequestsAreRejectedByName) {
  v1::LosslessReport report;
  const auto refused = [&](const std::function<void(v1::VerifyLosslessRequest*)>& change) {
    v1::VerifyLosslessRequest request = Request("good");
    change(&request);
    const grpc::Status status = Verify(request, &report);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refused([](auto* r) {
                r->mutable_models()->clear_ssm_artifacts();
                r->mutable_models()->clear_expansion();
              }),
              HasSubstr("nothing would be drafted"));
  EXPECT_THAT(refused([](auto* r) { r->mutable_models()->add_adapters(); }), HasSubstr("adapters"));
  EXPECT_THAT(refused([](auto* r) { r->set_answer_tokens(95); }), HasSubstr("the context 96"));
  for (const int tokens : {-1, 2}) {
    EXPECT_THAT(refused([&](auto* r) { r->set_answer_tokens(tokens); }),
                HasSubstr("'answer_tokens'"));
  }
  EXPECT_THAT(refused([](auto* r) { r->set_draws(7); }), HasSubstr("draws is 7"));
  EXPECT_THAT(refused([](auto* r) { r->set_distribution_top_k(9); }),
              HasSubstr("distribution_top_k is 9"));
  EXPECT_THAT(refused([](auto* r) { r->set_temperature(-1); }), HasSubstr("temperature is -1"));
  EXPECT_THAT(refused([](auto* r) { r->set_prompts(1, ""); }), HasSubstr("prompts[1] has 0"));
  EXPECT_THAT(refused([](auto* r) { r->set_prompts(2, std::string(60, 'a')); }),
              HasSubstr("prompts[2] has 60 tokens, expected 1 to 47"));
  EXPECT_EQ(Verify(Request("missing"), &report).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(LosslessVerificationTest, ListenerErrorEndsVerification) {
  int calls = 0;
  const auto stop = [&](const v1::LosslessProgress& progress) {
    return ++calls < 5 ? absl::OkStatus() : absl::CancelledError(progress.stage());
  };
  const auto report = RunLosslessVerification(Request("good"), &models_, clock_, stop);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 5);
}

}  // namespace
}  // namespace espalier
