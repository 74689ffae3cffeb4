#include "tests/benchmarks/serving_models.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "models/model.h"
#include "models/weights/weight_files.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/tensor/shape.h"
#include "planner/cost/analytic_cost.h"
#include "tests/benchmarks/workload.h"
#include "tests/plans/in_process_training.h"

namespace espalier {
namespace {

// Normally distributed elements, repeated to save time.
std::vector<char> Values(DType dtype, int64_t count, float scale) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> some(1 << 16);
  for (float& value : some) value = normal(random);
  std::vector<char> bytes(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t at = 0; at < count; at += static_cast<int64_t>(some.size())) {
    const int64_t n = std::min<int64_t>(count - at, static_cast<int64_t>(some.size()));
    char* const to = bytes.data() + at * static_cast<int64_t>(SizeOf(dtype));
    if (IsFloat(dtype)) {
      FromF32(dtype, some.data(), to, n);
    } else {
      // Integers. Bytes of packed weights are below 32, so that scales are finite.
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<char>(random() % 32);
    }
  }
  return bytes;
}

}  // namespace

absl::Status CountingRunner::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  const double start = Seconds();
  absl::Status status = inner_->Step(batch, logits);
  seconds += Seconds() - start;
  ++steps;
  rows += batch.rows();
  if (batch.rows() > widest.rows()) widest = batch;
  return status;
}

absl::StatusOr<Parameters> TrainForServing(const OpRegistry& registry, const std::string& name,
                                           int steps, int threads) {
  if (steps == 0) return Parameters();
  absl::StatusOr<Workload> work = MakeWorkload(registry, name);
  if (!work.ok()) return work.status();
  AnalyticCost cost;
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &work->graph;
  problem.batch_size = work->batch;
  problem.machine = TestMachine(1);
  problem.optimizer = work->optimizer;
  problem.cost = &cost;
  v1::SearchOptions search;
  search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, search);
  if (!plan.ok()) return plan.status();
  TrainingRunOptions options;
  options.steps = steps;
  options.batch_size = work->batch;
  options.threads_per_rank = threads;
  options.lowering.optimizer = work->optimizer;
  options.lowering.optimizer.mutable_learning_rate()->set_peak(2e-3);
  options.lowering.seed = 3;
  absl::StatusOr<InProcessRun> run =
      TrainInProcess(registry, work->graph, *plan, work->dataset, options);
  if (!run.ok()) return run.status();
  std::fprintf(stderr, "%s: loss %.3f after %d steps\n", name.c_str(), run->losses.back(), steps);
  return run->parameters;
}

absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const std::string& name,
                                           const Parameters& parameters, const ServingShape& shape,
                                           int threads) {
  return LoadForServing(registry, LlamaOf(name), parameters, shape, threads, {});
}

absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const LlamaConfig& config,
                                           const Parameters& parameters, const ServingShape& shape,
                                           int threads, const ServingLowering& lowering,
                                           const std::string& swap_folder) {
  absl::StatusOr<ServedModel> model =
      LoadForServing(registry, config, shape, WeightFormat::kF32, lowering,
                     NewCpuDevice({threads, int64_t{8} << 30, swap_folder}));
  if (!model.ok()) return model.status();
  for (const auto& [parameter, bytes] : parameters) {
    Executor& executor = model->runner->executor();
    const int buffer = executor.FindBuffer(parameter);
    if (buffer < 0) return absl::NotFoundError(parameter);
    absl::Status s = executor.WriteBuffer(buffer, bytes.data(), static_cast<int64_t>(bytes.size()));
    if (!s.ok()) return s;
  }
  model->weight_bytes =
      4.0 * static_cast<double>(CountParameters(config) - config.vocab_size * config.hidden_size);
  return model;
}

absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const LlamaConfig& config,
                                           const ServingShape& shape, WeightFormat format,
                                           const ServingLowering& lowering,
                                           std::unique_ptr<Device> device) {
  absl::StatusOr<Graph> graph = BuildLlamaServing(registry, config, shape);
  if (!graph.ok()) return graph.status();
  if (absl::Status s = BindAndInfer(registry, 1, &*graph); !s.ok()) return s;
  graph = QuantizeLinears(registry, *graph, format);
  if (!graph.ok()) return graph.status();
  absl::StatusOr<v1::Program> program = LowerServing(registry, *graph, lowering);
  if (!program.ok()) return program.status();
  ServedModel model;
  model.device = std::move(device);
  auto runner = ProgramModelRunner::Create(
      *program, "", static_cast<int>(config.max_position_embeddings), model.device.get());
  if (!runner.ok()) return runner.status();
  model.runner = *std::move(runner);
  model.counting = std::make_unique<CountingRunner>(model.runner.get());
  return model;
}

LlamaConfig WideLlama(int layers) {
  LlamaConfig config;
  config.vocab_size = 4096;
  config.hidden_size = 2048;
  config.intermediate_size = 5632;
  config.num_layers = layers;
  config.num_heads = 32;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = 1024;
  return config;
}

absl::Status FillAtRandom(ServedModel& model) {
  Executor& executor = model.runner->executor();
  for (int i = 0; i < executor.num_buffers(); ++i) {
    const v1::BufferKind kind = executor.buffer(i).kind();
    if (kind != v1::PARAMETER_SHARD && kind != v1::PERSISTENT) continue;
    const TensorSpec& spec = executor.spec(i);
    const std::vector<char> bytes = Values(spec.dtype, spec.num_elements(), 0.02f);
    if (absl::Status s = executor.WriteBuffer(i, bytes.data(), spec.bytes()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<ServedModel> LoadFolderForServing(const OpRegistry& registry,
                                                 const std::string& folder,
                                                 const ServingShape& shape, int threads) {
  std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  absl::StatusOr<std::string> config = ReadModelConfig(*files, folder);
  if (!config.ok()) return config.status();
  absl::StatusOr<LanguageModel> read = ReadModel(*config);
  if (!read.ok()) return read.status();
  if (read->facts.tokenizer != "bytes") {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": the model's tokens are not bytes; here only such are measured"));
  }
  ServingShape positions = shape;
  positions.max_positions = static_cast<int>(read->facts.max_positions);
  absl::StatusOr<ServingModel> serving = BuildServing(registry, *read, positions);
  if (!serving.ok()) return serving.status();
  if (absl::Status s = BindAndInfer(registry, 1, &serving->graph); !s.ok()) return s;
  absl::StatusOr<v1::Program> program = LowerServing(registry, serving->graph);
  if (!program.ok()) return program.status();
  ServedModel model;
  model.device = NewCpuDevice({threads, int64_t{8} << 30, ""});
  auto runner = ProgramModelRunner::Create(*program, folder, positions.max_positions,
                                           model.device.get(), serving->weights);
  if (!runner.ok()) return runner.status();
  model.runner = *std::move(runner);
  model.counting = std::make_unique<CountingRunner>(model.runner.get());
  for (const Value& value : serving->graph.values()) {
    if (value.kind == ValueKind::kParameter) {
      model.weight_bytes += static_cast<double>(value.type.bytes());
    }
  }
  return model;
}

std::string ServingText() {
  std::ifstream file("tests/data/genesis.txt", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace espalier
