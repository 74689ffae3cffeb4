// Served models on one worker, over gRPC: several beside each other, and what they keep from each
// other.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ops/models/llama.h"
#include "ops/models/model.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "proto/worker.grpc.pb.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/executor/initialize.h"
#include "worker/fake_coordinator.h"
#include "worker/local_worker.h"
#include "worker/runner/serving_wire.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 64;
constexpr int kSlots = 48;

// One served model of which the worker is the only rank.
struct Model {
  std::string job;
  proto::StartServingRequest request;
  int64_t bytes = 0;
};

class ServingTest : public testing::Test {
 protected:
  ServingTest() { RegisterAllOperators(registry_); }

  // A small model whose weights, keyed by `seed`, lie in a folder of its own.
  Model Make(const std::string& job, int64_t hidden, uint64_t seed) {
    LlamaConfig config;
    config.vocab_size = kVocabulary;
    config.hidden_size = hidden;
    config.intermediate_size = 2 * hidden;
    config.num_layers = 2;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = hidden / 4;
    config.max_position_embeddings = kSlots;
    const ServingShape shape{.max_rows = 8,
                             .max_output_rows = 8,
                             .kv_slots = kSlots,
                             .max_sequences = 2,
                             .max_context_slots = 64,
                             .max_ancestor_slots = 16};
    auto graph = BuildLlamaServing(registry_, config, shape);
    EXPECT_TRUE(graph.ok()) << graph.status();
    EXPECT_TRUE(BindAndInfer(registry_, 1, &*graph).ok());
    const std::string folder = JoinPath(testing::TempDir(), absl::StrCat("serving-", seed));
    WriteWeights(*graph, folder, seed);
    auto program = LowerServing(registry_, *graph);
    EXPECT_TRUE(program.ok()) << program.status();
    Model model;
    model.job = job;
    model.bytes = program->arena_bytes();
    *model.request.mutable_program() = *std::move(program);
    model.request.set_folder(folder);
    RunnerLimits limits;
    limits.vocabulary = kVocabulary;
    limits.kv_slots = kSlots;
    limits.max_rows = 8;
    limits.max_sequences = 2;
    limits.max_context_slots = 64;
    limits.max_ancestor_slots = 16;
    limits.max_positions = kSlots;
    *model.request.mutable_limits() = ToProto(limits, 8);
    return model;
  }

  void WriteWeights(const Graph& graph, const std::string& folder, uint64_t seed) {
    std::filesystem::remove_all(folder);
    ASSERT_TRUE(files_->CreateDirectories(folder).ok());
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const Value& value : graph.values()) {
      if (value.kind == ValueKind::kParameter) tensors.push_back({value.name, value.type});
    }
    SafetensorsWriter writer(*files_, JoinPath(folder, "model.safetensors"));
    ASSERT_TRUE(writer.Begin(tensors, {}).ok());
    proto::Initializer normal;
    normal.set_kind(proto::Initializer::NORMAL);
    normal.set_scale(0.3);
    for (const SafetensorsWriter::Tensor& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.type.num_elements()));
      const TensorSpec spec = TensorSpec::Whole(tensor.type);
      ASSERT_TRUE(Initialize(normal, tensor.name, seed, spec, values.data()).ok());
      ASSERT_TRUE(writer.Append(values.data(), tensor.type.bytes()).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
  }

  void Start(int64_t memory = 1 << 28) {
    WorkerOptions options;
    options.coordinator = coordinator_.address();
    options.name = "a";
    options.threads = 1;
    options.memory_limit = memory;
    options.calibrate = false;
    options.cache_dir = testing::TempDir();
    auto worker = StartWorker(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    stub_ = proto::Worker::NewStub(
        grpc::CreateChannel(worker_->address(), grpc::InsecureChannelCredentials()));
  }

  proto::Attempt AttemptOf(const std::string& job, uint64_t attempt = 1) {
    proto::Attempt ticket;
    ticket.set_job_id(job);
    ticket.set_attempt(attempt);
    ticket.set_worker_epoch(coordinator_.EpochOf("a"));
    return ticket;
  }

  grpc::Status Load(const Model& model, uint64_t attempt = 1) {
    proto::StartServingRequest request = model.request;
    *request.mutable_attempt() = AttemptOf(model.job, attempt);
    grpc::ClientContext context;
    proto::StartServingReply reply;
    return stub_->StartServing(&context, request, &reply);
  }

  grpc::Status Stop(const Model& model, uint64_t attempt = 1) {
    proto::StopRequest request;
    *request.mutable_attempt() = AttemptOf(model.job, attempt);
    grpc::ClientContext context;
    proto::StopReply reply;
    return stub_->Stop(&context, request, &reply);
  }

  // A stream of steps of one model: token after token of one sequence.
  class Steps {
   public:
    Steps(ServingTest& test, const Model& model, uint64_t attempt = 1)
        : stream_(test.stub_->ServingSteps(&context_)) {
      proto::ServingStep hello;
      *hello.mutable_attempt() = test.AttemptOf(model.job, attempt);
      proto::ServingResult ready;
      ready_ = stream_->Write(hello) && stream_->Read(&ready);
    }
    ~Steps() {
      stream_->WritesDone();
      stream_->Finish();
    }
    bool ready() const { return ready_; }

    // The next token's logits; empty if the stream has ended.
    std::string Next(int token) {
      RunnerBatch batch;
      batch.tokens = {token};
      batch.positions = {length_};
      batch.slots = {length_};
      batch.row_sequence = {0};
      batch.row_prefix = {length_ + 1};
      batch.ancestor_start = {0, 0};
      batch.sequence_start = {0, ++length_};
      for (int i = 0; i < length_; ++i) batch.sequence_slots.push_back(i);
      batch.logit_rows = {0};
      proto::ServingStep step;
      SetBatch(batch, &step);
      step.set_number(static_cast<uint64_t>(length_));
      proto::ServingResult result;
      if (!stream_->Write(step) || !stream_->Read(&result)) return "";
      EXPECT_EQ(result.refused(), "");
      return result.logits();
    }

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<proto::ServingStep, proto::ServingResult>> stream_;
    bool ready_ = false;
    int length_ = 0;
  };

  std::vector<std::string> Talk(const Model& model, uint64_t attempt = 1) {
    Steps steps(*this, model, attempt);
    EXPECT_TRUE(steps.ready());
    std::vector<std::string> all;
    for (int i = 0; i < kSlots; ++i) all.push_back(steps.Next((i * 37 + 5) % kVocabulary));
    return all;
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FakeCoordinator coordinator_;
  std::unique_ptr<LocalWorker> worker_;
  std::unique_ptr<proto::Worker::Stub> stub_;
};

TEST_F(ServingTest, ModelsBesideEachOtherAnswerAsTheyDoAloneWhoeverSteps) {
  Start();
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  std::vector<std::string> alone[2];
  for (const Model* model : {&large, &small}) {
    ASSERT_TRUE(Load(*model).ok());
    alone[model == &small] = Talk(*model);  // whose end unloads it
  }
  ASSERT_EQ(alone[0].back().size(), kVocabulary * sizeof(float));
  ASSERT_NE(alone[0], alone[1]);
  for (const Model* model : {&large, &small}) {
    const grpc::Status loaded = Load(*model, 2);
    ASSERT_TRUE(loaded.ok()) << loaded.error_message();
  }
  // At the same time, and however their steps fall.
  std::vector<std::string> together[2];
  std::thread other([&] { together[1] = Talk(small, 2); });
  together[0] = Talk(large, 2);
  other.join();
  EXPECT_EQ(together[0], alone[0]);
  EXPECT_EQ(together[1], alone[1]);
}

TEST_F(ServingTest, OneThatIsStoppedOrLoadedAgainLeavesTheOthersTheirCaches) {
  Start();
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  ASSERT_TRUE(Load(large).ok());
  std::vector<std::string> expected = Talk(large);
  ASSERT_TRUE(Load(large, 2).ok());
  Steps steps(*this, large, 2);
  int at = 0;
  const auto go_on = [&] {
    for (int end = at + 8; at < end; ++at) {
      EXPECT_EQ(steps.Next((at * 37 + 5) % kVocabulary), expected[static_cast<size_t>(at)]) << at;
    }
  };
  go_on();
  ASSERT_TRUE(Load(small).ok());
  go_on();
  {
    Steps drafts(*this, small);
    EXPECT_NE(drafts.Next(3), "");
    go_on();
    ASSERT_TRUE(Stop(small).ok());
    EXPECT_EQ(drafts.Next(4), "");
  }
  go_on();
  EXPECT_FALSE(Load(small).ok()) << "that attempt was stopped";
  ASSERT_TRUE(Load(small, 2).ok());
  ASSERT_TRUE(Load(small, 3).ok());
  EXPECT_FALSE(Steps(*this, small, 2).ready()) << "a newer one has its place";
  EXPECT_TRUE(Steps(*this, small, 3).ready());
  go_on();
}

TEST_F(ServingTest, WhatDoesNotFitBesideTheOthersIsRefusedAndTheyGoOn) {
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  Start(large.bytes + small.bytes / 2);
  ASSERT_TRUE(Load(large).ok());
  Steps steps(*this, large);
  EXPECT_NE(steps.Next(1), "");
  const grpc::Status refused = Load(small);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("out of memory"), std::string::npos);
  EXPECT_NE(steps.Next(2), "");
}

TEST_F(ServingTest, TrainingAndMeasuringWaitForNoServedModelAndAreRefused) {
  Start();
  const Model large = Make("serving/lm", 64, 1);
  ASSERT_TRUE(Load(large).ok());
  Steps steps(*this, large);
  ASSERT_TRUE(steps.ready());
  proto::LoadProgramRequest training;
  *training.mutable_attempt() = AttemptOf("job");
  grpc::ClientContext load, measure;
  proto::LoadProgramReply loaded;
  const grpc::Status busy = stub_->LoadProgram(&load, training, &loaded);
  EXPECT_EQ(busy.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(busy.error_message().find("of job serving/lm"), std::string::npos)
      << busy.error_message();
  proto::MeasureReply measured;
  EXPECT_EQ(stub_->Measure(&measure, proto::MeasureRequest(), &measured).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(steps.Next(1), "");
}

TEST_F(ServingTest, ALostLeaseEndsAllOfThem) {
  Start();
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  ASSERT_TRUE(Load(large).ok());
  ASSERT_TRUE(Load(small).ok());
  Steps steps(*this, large), drafts(*this, small);
  EXPECT_NE(steps.Next(1), "");
  EXPECT_NE(drafts.Next(1), "");
  const uint64_t before = coordinator_.EpochOf("a");
  coordinator_.ForgetLeases();
  for (int i = 0; i < 200 && coordinator_.EpochOf("a") == before; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(steps.Next(2), "");
  EXPECT_EQ(drafts.Next(2), "");
  EXPECT_TRUE(Load(large, 2).ok());
}

}  // namespace
}  // namespace espalier
