// Small graphs and machines for the planner's tests.
#pragma once

#include <cstdlib>
#include <string>

#include "models/llama.h"
#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"

namespace espalier {

inline const OpRegistry& TestRegistry() {
  static const OpRegistry* registry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *registry;
}

// Aborts on an error.
inline Graph Bound(absl::StatusOr<Graph> graph, int64_t batch) {
  absl::Status status = graph.status();
  if (status.ok()) status = BindAndInfer(TestRegistry(), batch, &*graph);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  }
  return *std::move(graph);
}

// x -> linear -> relu -> linear -> cross-entropy, with accuracy.
inline Graph Mlp(int64_t batch = 8, int64_t hidden = 16, int64_t in = 12, int64_t classes = 4) {
  GraphBuilder b(TestRegistry(), "mlp");
  const ValueId x = b.Input("x", DType::kF32, {-1, in});
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  const Initializer init{Initializer::kNormal, 0.1};
  ValueId h = b.Op("linear",
                   {x, b.Parameter("fc1.weight", DType::kF32, {hidden, in}, init),
                    b.Parameter("fc1.bias", DType::kF32, {hidden}, init)},
                   {}, "fc1");
  h = b.Op("relu", {h}, {}, "act");
  h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {classes, hidden}, init)}, {},
           "fc2");
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
  return Bound(b.Build(), batch);
}

// Convolution, batch norm, pooling, flatten, linear.
inline Graph Cnn(int64_t batch = 8) {
  GraphBuilder b(TestRegistry(), "cnn");
  const ValueId x = b.Input("x", DType::kF32, {-1, 1, 8, 8});
  const ValueId labels = b.Input("labels", DType::kI64, {-1});
  const Initializer init{Initializer::kNormal, 0.1};
  const Initializer ones{Initializer::kOnes, 0}, zeros{};
  const Attributes conv = {{"strides", std::vector<int64_t>{1, 1}},
                           {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                           {"dilations", std::vector<int64_t>{1, 1}},
                           {"groups", int64_t{1}}};
  ValueId h = b.Op("conv2d",
                   {x, b.Parameter("conv.weight", DType::kF32, {8, 1, 3, 3}, init),
                    b.Parameter("conv.bias", DType::kF32, {8}, init)},
                   conv, "conv");
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
  h = b.Op("linear", {h, b.Parameter("fc.weight", DType::kF32, {10, 128}, init)}, {}, "fc");
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
  return Bound(b.Build(), batch);
}

inline LlamaConfig SmallLlama(int layers = 2, bool tied = false) {
  LlamaConfig config;
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_layers = layers;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.tie_word_embeddings = tied;
  return config;
}

// With parameters large enough for ZeRO to shard.
inline LlamaConfig LargerLlama(int layers, bool tied = false) {
  LlamaConfig config = SmallLlama(layers, tied);
  config.vocab_size = 256;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.head_dim = 16;
  return config;
}

inline Graph Llama(const LlamaConfig& config, int64_t batch = 8, int sequence = 16) {
  return Bound(BuildLlamaTraining(TestRegistry(), config, sequence), batch);
}

// Equal devices with round rates: 1e11 FLOP/s, 1e10 bytes/s, 2 us per operator, link of 5e9
// bytes/s.
inline Machine TestMachine(int devices, int64_t memory_bytes = int64_t{1} << 32) {
  Machine machine;
  for (int i = 0; i < devices; ++i) {
    v1::Device device;
    device.set_kind(v1::Device::CPU);
    device.set_model("test");
    device.set_memory_bytes(memory_bytes);
    device.set_matmul_flops(1e11);
    device.set_memory_bandwidth(1e10);
    device.set_op_overhead_seconds(2e-6);
    device.set_threads(1);
    machine.devices.push_back(device);
  }
  machine.link.set_bandwidth(5e9);
  machine.link.set_latency_seconds(2e-5);
  return machine;
}

inline v1::Optimizer TestOptimizer(double clip = 1.0, const std::string& name = "adam") {
  v1::Optimizer optimizer;
  optimizer.set_name(name);
  optimizer.set_clip_norm(clip);
  return optimizer;
}

inline PlanProblem TestProblem(const Graph& graph, int64_t batch, int devices,
                               int64_t memory_bytes = int64_t{1} << 32) {
  PlanProblem problem;
  problem.registry = &TestRegistry();
  problem.graph = &graph;
  problem.batch_size = batch;
  problem.machine = TestMachine(devices, memory_bytes);
  problem.optimizer = TestOptimizer();
  return problem;
}

inline v1::SearchOptions WithStrategy(v1::SearchOptions::Strategy strategy) {
  v1::SearchOptions options;
  options.set_strategy(strategy);
  return options;
}

}  // namespace espalier
