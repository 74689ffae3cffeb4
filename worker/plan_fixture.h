// Small models, batches and plans for tests that run plans by in-process ranks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/llama.h"
#include "ops/graph/builder.h"
#include "ops/kernel/philox.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/executor/batch_source.h"
#include "worker/executor/executor.h"

namespace espalier {

inline constexpr int64_t kBatch = 8;

inline const OpRegistry& Registry() {
  static const OpRegistry* registry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *registry;
}

inline Graph Bound(absl::StatusOr<Graph> graph) {
  EXPECT_TRUE(graph.ok()) << graph.status();
  absl::Status bound = BindAndInfer(Registry(), kBatch, &*graph);
  EXPECT_TRUE(bound.ok()) << bound;
  return *std::move(graph);
}

inline Graph MlpOf(int64_t in, int64_t hidden) {
  GraphBuilder b(Registry(), "mlp");
  const Initializer init{Initializer::kNormal, 0.3};
  ValueId h = b.Op("linear",
                   {b.Input("x", DType::kF32, {-1, in}),
                    b.Parameter("fc1.weight", DType::kF32, {hidden, in}, init),
                    b.Parameter("fc1.bias", DType::kF32, {hidden}, init)},
                   {}, "fc1");
  h = b.Op("gelu", {h}, {}, "act");
  h = b.Op("dropout", {h}, {{"rate", 0.2}}, "drop");
  h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {4, hidden}, init)}, {}, "fc2");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
  return Bound(b.Build());
}

inline Graph Mlp() { return MlpOf(12, 16); }
// A model whose parameters ZeRO shards over two or three ranks.
inline Graph WideMlp() { return MlpOf(96, 768); }

inline Graph Cnn() {
  GraphBuilder b(Registry(), "cnn");
  const Initializer init{Initializer::kNormal, 0.2};
  const Initializer ones{Initializer::kOnes, 0}, zeros{};
  ValueId h = b.Op("conv2d",
                   {b.Input("x", DType::kF32, {-1, 1, 8, 8}),
                    b.Parameter("conv.weight", DType::kF32, {8, 1, 3, 3}, init)},
                   {{"strides", std::vector<int64_t>{1, 1}},
                    {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                    {"dilations", std::vector<int64_t>{1, 1}},
                    {"groups", int64_t{1}}},
                   "conv");
  const ValueId stats = b.Op("batch_norm_stats", {h}, {}, "bn.stats");
  h = b.Op("batch_norm",
           {h, b.Parameter("bn.scale", DType::kF32, {8}, ones),
            b.Parameter("bn.bias", DType::kF32, {8}, zeros),
            b.Parameter("bn.running_mean", DType::kF32, {8}, zeros, false),
            b.Parameter("bn.running_var", DType::kF32, {8}, ones, false), stats},
           {}, "bn");
  h = b.Op("relu", {h}, {}, "act");
  h = b.Op("pool2d", {h},
           {{"kind", "max"},
            {"kernel", std::vector<int64_t>{2, 2}},
            {"strides", std::vector<int64_t>{2, 2}},
            {"pads", std::vector<int64_t>{0, 0, 0, 0}}},
           "pool");
  h = b.Op("flatten", {h}, {{"axis", int64_t{1}}}, "flatten");
  h = b.Op("linear", {h, b.Parameter("fc.weight", DType::kF32, {4, 128}, init)}, {}, "fc");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
  return Bound(b.Build());
}

inline LlamaConfig SmallLlama() {
  LlamaConfig config;
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  return config;
}

inline Graph Llama() { return Bound(BuildLlamaTraining(Registry(), SmallLlama(), 16)); }

// A model whose parameters ZeRO shards, one of them read twice.
inline Graph WideLlama() {
  LlamaConfig config = SmallLlama();
  config.vocab_size = 96;
  config.hidden_size = 48;
  config.intermediate_size = 96;
  config.head_dim = 12;
  config.tie_word_embeddings = true;
  return Bound(BuildLlamaTraining(Registry(), config, 16));
}

// Element i of the global batch depends on (column, step, i) only.
class MadeUpSource : public BatchSource {
 public:
  absl::Status Prepare(const std::string&, const TensorSpec&) override { return absl::OkStatus(); }
  absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t step,
                    void* host) override {
    const int classes = column == "labels" ? 4 : 32;
    Dims index(spec.dims.size(), 0);
    for (int64_t i = 0; i < spec.num_elements(); ++i) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        at = at * spec.global[d] + spec.offset[d] + index[d];
      }
      const float u =
          PhiloxUniform(77, column.size(), static_cast<uint64_t>(step), static_cast<uint64_t>(at));
      if (spec.dtype == DType::kF32) {
        static_cast<float*>(host)[i] = u - 0.5f;
      } else {
        static_cast<int32_t*>(host)[i] = static_cast<int32_t>(u * static_cast<float>(classes));
      }
      for (int d = static_cast<int>(index.size()) - 1; d >= 0 && ++index[d] == spec.dims[d]; --d) {
        index[d] = 0;
      }
    }
    return absl::OkStatus();
  }
};

inline LoweringOptions Options(const std::string& optimizer) {
  LoweringOptions options;
  options.seed = 3;
  options.optimizer.set_name(optimizer);
  options.optimizer.mutable_learning_rate()->set_peak(optimizer == "sgd" ? 0.1 : 0.003);
  if (optimizer == "sgd") (*options.optimizer.mutable_attributes())["momentum"].set_f(0.9);
  if (optimizer == "adafactor") {
    // Penalties on all and on some parameters.
    options.optimizer.add_regularizers()->set_l2(1e-3);
    v1::Regularizer* some = options.optimizer.add_regularizers();
    some->set_parameter("fc*");
    some->set_l1(1e-4);
    options.optimizer.set_report_penalties(true);
  }
  options.optimizer.set_clip_norm(1.0);
  if (optimizer == "adagrad") {
    // Groups of parameters, and no clipping: updates run as soon as their gradients are there.
    options.optimizer.set_clip_norm(0);
    options.optimizer.mutable_learning_rate()->set_peak(0.03);
    (*options.optimizer.mutable_attributes())["weight_decay"].set_f(0.01);
    v1::ParameterGroup* biases = options.optimizer.add_groups();
    biases->add_parameters("*.bias");
    biases->set_weight_decay(0);
    v1::ParameterGroup* last = options.optimizer.add_groups();
    last->add_parameters("fc2.*");
    last->add_parameters("bn.*");
    last->set_learning_rate_scale(0.25);
  }
  return options;
}

inline PlanProblem Problem(const Graph& graph, int devices) {
  PlanProblem problem;
  problem.registry = &Registry();
  problem.graph = &graph;
  problem.batch_size = kBatch;
  for (int i = 0; i < devices; ++i) {
    v1::Device device;
    device.set_kind(v1::Device::CPU);
    device.set_memory_bytes(int64_t{1} << 32);
    device.set_matmul_flops(1e11);
    device.set_memory_bandwidth(1e10);
    device.set_op_overhead_seconds(2e-6);
    device.set_threads(1);
    problem.machine.devices.push_back(device);
  }
  problem.machine.link.set_bandwidth(5e9);
  problem.machine.link.set_latency_seconds(1e-7);  // low, so that the search does split
  return problem;
}

// Makes the executor of each program, and calls `work` with it, all at the same time, as ranks that
// talk to each other. A rank that fails fails the test.
inline void OnRanks(const std::vector<v1::Program>& programs,
                    const std::function<absl::Status(int rank, Executor& executor)>& work) {
  const int world = static_cast<int>(programs.size());
  auto communicators = NewInProcessCommunicators(world, absl::Seconds(60));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto device = NewCpuDevice({1, 1 << 28});
      MadeUpSource source;
      ExecutorOptions options;
      options.device = device.get();
      options.communicator = communicators[rank].get();
      options.source = &source;
      auto executor = Executor::Create(programs[rank], options);
      const absl::Status status = executor.ok() ? work(rank, **executor) : executor.status();
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
      if (!status.ok()) communicators[rank]->Abort("another rank failed");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace espalier
