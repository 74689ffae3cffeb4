// Test fixture for workers that serve small models: builds models and runs streams of steps.
#pragma once

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "models/llama.h"
#include "models/model.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "serving/runner/serving_proto.h"
#include "storage/safetensors.h"
#include "worker/executor/initialize.h"

namespace espalier {

class ServingFixture : public testing::Test {
 protected:
  static constexpr int kVocabulary = 64;
  static constexpr int kSlots = 48;

  // One rank of a served model.
  struct Model {
    std::string job;
    v1::StartServingRequest request;
    int64_t bytes = 0;
  };

  ServingFixture() { RegisterAllOperators(registry_); }

  // The epoch of the worker's lease.
  virtual uint64_t Epoch() const = 0;

  // Builds a small model with weights from `seed` in its own folder.
  Model Make(const std::string& job, int64_t hidden, uint64_t seed) {
    return MakeRanks(job, hidden, seed, {})[0];
  }
  std::vector<Model> MakeRanks(const std::string& job, int64_t hidden, uint64_t seed,
                               const ServingDegrees& degrees) {
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
    auto programs = LowerServing(registry_, *graph, degrees);
    EXPECT_TRUE(programs.ok()) << programs.status();
    WeightMap weights;
    AddImplicitSources(*graph, &weights);
    RunnerLimits limits;
    limits.vocabulary = kVocabulary;
    limits.kv_slots = kSlots;
    limits.max_rows = 8;
    limits.max_sequences = 2;
    limits.max_context_slots = 64;
    limits.max_ancestor_slots = 16;
    limits.max_positions = kSlots;
    std::vector<Model> ranks;
    for (v1::Program& program : *programs) {
      Model model;
      model.job = job;
      model.bytes = program.arena_bytes();
      *model.request.mutable_program() = std::move(program);
      model.request.set_folder(absl::StrCat("serving-", seed));  // in TempDir()
      SetWeights(weights, &model.request);
      *model.request.mutable_limits() = ToProto(limits, 8);
      ranks.push_back(std::move(model));
    }
    return ranks;
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
    v1::Initializer normal;
    normal.set_kind(v1::Initializer::NORMAL);
    normal.set_scale(0.3);
    for (const SafetensorsWriter::Tensor& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.type.num_elements()));
      const TensorSpec spec = TensorSpec::Whole(tensor.type);
      ASSERT_TRUE(Initialize(normal, tensor.name, seed, spec, values.data()).ok());
      ASSERT_TRUE(writer.Append(values.data(), tensor.type.bytes()).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
  }

  v1::Attempt AttemptOf(const std::string& job, uint64_t attempt = 1) {
    v1::Attempt ticket;
    ticket.set_job_id(job);
    ticket.set_attempt(attempt);
    ticket.set_worker_epoch(Epoch());
    return ticket;
  }

  grpc::Status Load(const Model& model, uint64_t attempt = 1) {
    v1::StartServingRequest request = model.request;
    *request.mutable_attempt() = AttemptOf(model.job, attempt);
    grpc::ClientContext context;
    v1::StartServingReply reply;
    return stub_->StartServing(&context, request, &reply);
  }

  grpc::Status Stop(const Model& model, uint64_t attempt = 1) {
    v1::StopRequest request;
    *request.mutable_attempt() = AttemptOf(model.job, attempt);
    grpc::ClientContext context;
    v1::StopReply reply;
    return stub_->Stop(&context, request, &reply);
  }

  // A stream of steps of one model that decodes one sequence token by token.
  class Steps {
   public:
    Steps(ServingFixture& test, const Model& model, uint64_t attempt = 1) {
      // Fail rather than hang if a step never arrives.
      context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(100));
      stream_ = test.stub_->ServingSteps(&context_);
      v1::ServingStep hello;
      *hello.mutable_attempt() = test.AttemptOf(model.job, attempt);
      v1::ServingResult ready;
      ready_ = stream_->Write(hello) && stream_->Read(&ready);
    }
    ~Steps() {
      stream_->WritesDone();
      stream_->Finish();
    }
    bool ready() const { return ready_; }

    // Returns the next token's logits; empty if the stream has ended.
    std::string Next(int token) { return Run(token, RunnerBatch::kLogits).logits(); }
    // Runs a step that asks for the sampled token only, and returns it; -1 if logits arrive or the
    // stream has ended.
    int Choose(int token) {
      const v1::ServingResult result = Run(token, RunnerBatch::kToken);
      return result.logits().empty() && result.choice_tokens_size() == 1 ? result.choice_tokens(0)
                                                                         : -1;
    }

    // Waits until the worker ends the stream.
    void AwaitEnd() {
      v1::ServingResult result;
      while (stream_->Read(&result)) {
      }
    }

   private:
    v1::ServingResult Run(int token, int32_t row_output) {
      RunnerBatch batch;
      batch.row_outputs = {row_output};
      batch.tokens = {token};
      batch.positions = {length_};
      batch.slots = {length_};
      batch.row_sequence = {0};
      batch.row_prefix = {length_ + 1};
      batch.ancestor_start = {0, 0};
      batch.sequence_start = {0, ++length_};
      for (int i = 0; i < length_; ++i) batch.sequence_slots.push_back(i);
      batch.logit_rows = {0};
      v1::ServingStep step;
      SetBatch(batch, &step);
      step.set_number(static_cast<uint64_t>(length_));
      v1::ServingResult result;
      if (!stream_->Write(step) || !stream_->Read(&result)) return v1::ServingResult();
      EXPECT_EQ(result.refused(), "");
      return result;
    }

    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<v1::ServingStep, v1::ServingResult>> stream_;
    bool ready_ = false;
    int length_ = 0;
  };

  std::vector<std::string> DecodeAll(const Model& model, uint64_t attempt = 1) {
    Steps steps(*this, model, attempt);
    EXPECT_TRUE(steps.ready());
    std::vector<std::string> all;
    for (int i = 0; i < kSlots; ++i) all.push_back(steps.Next((i * 37 + 5) % kVocabulary));
    return all;
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::unique_ptr<v1::Worker::Stub> stub_;  // set by the test
};

}  // namespace espalier
