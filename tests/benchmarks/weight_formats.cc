// Decode and prefill with weights of 32, 16, 8 and 4 bits of a LLaMA with random weights, run by
// the serving executor. A step of one row reads all matrices once, so its time is compared with the
// same threads reading an array of that size; on a GPU, with a device-to-device copy, counted as
// read and written.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "ops/operators/register_all.h"
#include "ops/quantized/quantize_graph.h"
#include "planner/planner.h"
#include "tests/benchmarks/memory_bandwidth.h"
#include "tests/benchmarks/onednn_matmul.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/serving_models.h"
#include "tests/benchmarks/workload.h"
#include "worker/device/device.h"
#include "worker/runner/program_model_runner.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(std::string, device, "cpu", "cpu or cuda");
ABSL_FLAG(std::string, cuda_plugin, "", "path of libespalier_cuda.so; empty: beside this program");
ABSL_FLAG(int, threads, 2, "for the model and for the bandwidth");
ABSL_FLAG(int, layers, 6, "of the model");
ABSL_FLAG(std::string, model, "1b", "whose layers: 1b, TinyLlama's, or 8b, LLaMA 3's");
ABSL_FLAG(int, rounds, 7, "turns");
ABSL_FLAG(int, context, 64, "tokens before those of a step");
ABSL_FLAG(std::vector<std::string>, formats,
          std::vector<std::string>({"f32", "bf16", "f16", "int8", "int4"}), "of the weights");

namespace espalier {
namespace {

constexpr int kRows[] = {1, 4, 8, 21, 256};
constexpr int kMostRows = 256;
constexpr int kFewRows = 32;  // up to here steps are short

LlamaConfig Config() {
  LlamaConfig config = WideLlama(absl::GetFlag(FLAGS_layers));
  config.max_position_embeddings = std::max<int64_t>(1024, 2 * absl::GetFlag(FLAGS_context));
  if (absl::GetFlag(FLAGS_model) == "8b") {
    config.hidden_size = 4096;
    config.intermediate_size = 14336;
    config.num_kv_heads = 8;
    config.head_dim = 128;
  }
  return config;
}

bool OnGpu() { return absl::GetFlag(FLAGS_device) == "cuda"; }

absl::StatusOr<std::unique_ptr<Device>> OpenDevice() {
  if (OnGpu()) return OpenCudaDevice(absl::GetFlag(FLAGS_cuda_plugin), 0, 0);
  if (absl::GetFlag(FLAGS_device) != "cpu") {
    return absl::InvalidArgumentError("--device is cpu or cuda");
  }
  return NewCpuDevice({absl::GetFlag(FLAGS_threads), int64_t{12} << 30});
}

struct Model {
  WeightFormat format;
  std::unique_ptr<Device> device;
  std::unique_ptr<ProgramModelRunner> runner;
  double matrix_bytes = 0;  // of the matrices that a step reads
  double flops = 0;         // of the matrices, for each row
};

// Fills every parameter with normal values; matrices get equal values in every format.
absl::Status Fill(const Graph& graph, Executor& executor, Model* model) {
  for (const Node& node : graph.nodes()) {
    const bool packed = node.op == "quantized_linear";
    if (!packed && node.op != "linear") continue;
    const Value& weight = graph.value(node.inputs[1]);
    const int64_t out = graph.value(node.outputs[0]).type.dims.back();
    const int64_t in = graph.value(node.inputs[0]).type.dims.back();
    std::mt19937 random(static_cast<unsigned>(out + in));
    std::normal_distribution<float> normal(0, 0.02f);
    // Rows repeat to save time; they are still separate memory.
    std::vector<float> values(static_cast<size_t>(out * in));
    const size_t some = std::min(values.size(), size_t{1} << 16);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = i < some ? normal(random) : values[i - some];
    }
    std::vector<char> bytes(reinterpret_cast<const char*>(values.data()),
                            reinterpret_cast<const char*>(values.data() + values.size()));
    if (packed) {
      absl::StatusOr<std::vector<char>> made =
          QuantizeWeight(weight.name, model->format, out, in, values.data());
      if (!made.ok()) return made.status();
      bytes = *std::move(made);
    }
    const int buffer = executor.FindBuffer(weight.name);
    if (buffer < 0) return absl::NotFoundError(weight.name);
    absl::Status status =
        executor.WriteBuffer(buffer, bytes.data(), static_cast<int64_t>(bytes.size()));
    if (!status.ok()) return status;
    model->matrix_bytes += static_cast<double>(bytes.size());
    model->flops += 2.0 * static_cast<double>(out) * static_cast<double>(in);
  }
  return absl::OkStatus();
}

absl::StatusOr<Model> Make(const OpRegistry& registry, WeightFormat format) {
  const LlamaConfig config = Config();
  ServingShape shape;
  shape.max_rows = shape.max_output_rows = kMostRows;
  shape.kv_slots = shape.max_context_slots = kMostRows + absl::GetFlag(FLAGS_context);
  shape.max_sequences = 1;
  shape.max_ancestor_slots = 1;
  absl::StatusOr<Graph> graph = BuildLlamaServing(registry, config, shape);
  if (!graph.ok()) return graph.status();
  if (absl::Status s = BindAndInfer(registry, 1, &*graph); !s.ok()) return s;
  absl::StatusOr<Graph> quantized = QuantizeLinears(registry, *graph, format);
  if (!quantized.ok()) return quantized.status();
  absl::StatusOr<v1::Program> program = LowerServing(registry, *quantized);
  if (!program.ok()) return program.status();
  Model model;
  model.format = format;
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice();
  if (!device.ok()) return device.status();
  model.device = *std::move(device);
  auto runner = ProgramModelRunner::Create(
      *program, "", static_cast<int>(config.max_position_embeddings), model.device.get());
  if (!runner.ok()) return runner.status();
  model.runner = *std::move(runner);
  if (absl::Status s = Fill(*quantized, model.runner->executor(), &model); !s.ok()) return s;
  return model;
}

// Returns a batch of `rows` tokens of one sequence after the context.
RunnerBatch Batch(int rows) {
  const int context = absl::GetFlag(FLAGS_context);
  RunnerBatch batch;
  for (int r = 0; r < rows; ++r) {
    batch.tokens.push_back(r + 1);
    batch.positions.push_back(context + r);
    batch.slots.push_back(context + r);
    batch.row_sequence.push_back(0);
    batch.row_prefix.push_back(context + r + 1);
    batch.logit_rows.push_back(r);
  }
  batch.ancestor_start.assign(static_cast<size_t>(rows) + 1, 0);
  batch.sequence_start = {0, context + rows};
  for (int i = 0; i < context + rows; ++i) batch.sequence_slots.push_back(i);
  return batch;
}

// Does not time the first step, which evicts the previous model from the last-level cache.
absl::StatusOr<double> StepSeconds(Model& model, const RunnerBatch& batch) {
  RunnerOutput logits;
  const double start = Seconds();
  if (absl::Status s = model.runner->Step(batch, &logits); !s.ok()) return s;
  return Seconds() - start;
}

absl::StatusOr<double> StepSeconds(Model& model, const RunnerBatch& batch, int repeats) {
  if (absl::Status s = StepSeconds(model, batch).status(); !s.ok()) return s;
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    absl::StatusOr<double> one = StepSeconds(model, batch);
    if (!one.ok()) return one.status();
    seconds.push_back(*one);
  }
  return Median(seconds);
}

// Measures the device's memory bandwidth in bytes/s: a pass over `bytes` by the threads, or on a
// GPU copies of an array larger than its caches.
absl::StatusOr<std::function<absl::StatusOr<double>()>> Yardstick(Device* device, int64_t bytes) {
  if (!OnGpu()) {
    auto array = std::make_shared<ReadBandwidthArray>(absl::GetFlag(FLAGS_threads), bytes);
    return std::function<absl::StatusOr<double>()>(
        [array]() -> absl::StatusOr<double> { return array->Read(); });
  }
  constexpr int64_t kBytes = int64_t{1} << 30, kRow = int64_t{1} << 20;
  constexpr int kTimes = 4;
  std::shared_ptr<DeviceMemory> ends[2];
  for (auto& end : ends) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = device->Allocate(kBytes);
    if (!memory.ok()) return memory.status();
    end = *std::move(memory);
  }
  BoxCopy copy;
  copy.source = ends[0]->data();
  copy.destination = ends[1]->data();
  copy.dtype = DType::kF32;
  copy.source_dims = copy.destination_dims = copy.size = {kBytes / kRow, kRow / 4};
  copy.source_start = copy.destination_start = {0, 0};
  return std::function<absl::StatusOr<double>()>(
      [device, copy, from = ends[0], to = ends[1]]() -> absl::StatusOr<double> {
        const double start = Seconds();
        for (int i = 0; i < kTimes; ++i) {
          if (absl::Status s = device->CopyBox(copy); !s.ok()) return s;
        }
        if (absl::Status s = device->Synchronize(); !s.ok()) return s;
        return 2.0 * kTimes * kBytes / (Seconds() - start);
      });
}

// Alternates a step of one row with a pass over an array of equal size: on shared machines memory
// bandwidth changes within seconds.
struct Decoding {
  std::vector<double> seconds, readable, share;

  absl::Status Measure(Model& model, const RunnerBatch& batch, int turns) {
    const auto readable_now =
        Yardstick(model.device.get(), static_cast<int64_t>(model.matrix_bytes));
    if (!readable_now.ok()) return readable_now.status();
    for (int i = 0; i < turns; ++i) {
      absl::StatusOr<double> step = StepSeconds(model, batch);
      if (!step.ok()) return step.status();
      absl::StatusOr<double> pace = (*readable_now)();
      if (!pace.ok()) return pace.status();
      seconds.push_back(*step);
      readable.push_back(*pace);
      share.push_back(model.matrix_bytes / *step / *pace);
    }
    return absl::OkStatus();
  }
};

// Returns milliseconds per step by operator, medians over the steps.
absl::StatusOr<std::map<std::string, double>> ByOperator(Model& model, const RunnerBatch& batch) {
  const int steps = batch.rows() > kFewRows ? 5 : 21;
  RunnerOutput logits;
  std::map<std::string, std::vector<double>> seconds;
  for (int i = 0; i < steps; ++i) {
    // Fills the inputs and warms the caches.
    if (absl::Status s = model.runner->Step(batch, &logits); !s.ok()) return s;
    absl::StatusOr<StepResult> result = model.runner->executor().Step(
        0, /*profile=*/true, {batch.rows(), static_cast<int64_t>(batch.logit_rows.size())});
    if (!result.ok()) return result.status();
    std::map<std::string, double> sums;
    for (const InstructionTime& time : result->profile) sums[time.op] += time.seconds;
    for (const auto& [op, sum] : sums) seconds[op].push_back(sum);
  }
  std::map<std::string, double> medians;
  for (const auto& [op, all] : seconds) medians[op] = Median(all) * 1e3;
  return medians;
}

absl::Status ReportOperators(std::vector<Model>& models, const RunnerBatch& batch, Report* report) {
  std::vector<std::map<std::string, double>> times;
  std::set<std::string> ops;
  for (Model& model : models) {
    auto one = ByOperator(model, batch);
    if (!one.ok()) return one.status();
    times.push_back(*std::move(one));
    for (const auto& [op, ms] : times.back()) ops.insert(op);
  }
  std::vector<std::string> columns = {"operator"};
  for (const Model& model : models) {
    columns.push_back(absl::StrCat(Name(model.format), ": ms"));
  }
  report->Table(batch.rows() == 1 ? std::string("One row by operator")
                                  : absl::StrCat(batch.rows(), " rows by operator"),
                columns);
  for (const std::string& op : ops) {
    std::vector<Cell> cells = {Text(op)};
    for (const auto& one : times) {
      const auto found = one.find(op);
      cells.push_back(found == one.end() ? Text("") : Number(found->second, 3));
    }
    report->Row(std::move(cells));
  }
  return absl::OkStatus();
}

absl::Status Run(Report* report) {
  if (absl::GetFlag(FLAGS_model) != "1b" && absl::GetFlag(FLAGS_model) != "8b") {
    return absl::InvalidArgumentError("--model is 1b or 8b");
  }
  OpRegistry registry;
  RegisterAllOperators(registry);
  std::vector<Model> models;
  std::vector<RunnerBatch> batches;
  for (const int rows : kRows) batches.push_back(Batch(rows));
  for (const std::string& name : absl::GetFlag(FLAGS_formats)) {
    const absl::StatusOr<WeightFormat> format = WeightFormatOf(name);
    if (!format.ok()) return format.status();
    absl::StatusOr<Model> model = Make(registry, *format);
    if (!model.ok()) return model.status();
    models.push_back(*std::move(model));
    // Fills the context's KV cache and touches the memory.
    if (absl::Status s = StepSeconds(models.back(), batches.back(), 1).status(); !s.ok()) return s;
    std::fprintf(stderr, "%s: %.0f MB of matrices\n", name.c_str(),
                 models.back().matrix_bytes / 1e6);
  }
  std::vector<std::vector<std::vector<double>>> seconds(
      models.size(), std::vector<std::vector<double>>(batches.size()));
  std::vector<Decoding> decoding(models.size());
  std::vector<std::pair<MatmulType, OneDnnMatmul>> rivals;
  std::map<MatmulType, std::vector<double>> reached;
  for (const MatmulType type : {MatmulType::kF32, MatmulType::kBf16, MatmulType::kInt8}) {
    if (OnGpu()) break;
    auto rival = OneDnnMatmul::Make(type, kMostRows, Config().intermediate_size,
                                    Config().hidden_size, absl::GetFlag(FLAGS_threads));
    if (!rival.ok()) return rival.status();
    if (rival->has_value()) rivals.emplace_back(type, **std::move(rival));
  }
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (auto& [type, rival] : rivals) {
      absl::StatusOr<double> gflops = rival.Gflops();
      if (!gflops.ok()) return gflops.status();
      reached[type].push_back(*gflops);
    }
    for (size_t m = 0; m < models.size(); ++m) {
      if (absl::Status s = decoding[m].Measure(models[m], batches[0], 13); !s.ok()) return s;
      for (size_t b = 1; b < batches.size(); ++b) {
        absl::StatusOr<double> one =
            StepSeconds(models[m], batches[b], kRows[b] > kFewRows ? 1 : 13);
        if (!one.ok()) return one.status();
        seconds[m][b].push_back(*one);
      }
    }
  }
  for (size_t m = 0; m < models.size(); ++m) seconds[m][0] = decoding[m].seconds;
  const std::string where = OnGpu() ? models.front().device->description().model()
                                    : absl::StrCat(absl::GetFlag(FLAGS_threads), " threads");
  report->Table(absl::StrCat("One row: decoding, ", where),
                {"weights", "MB", "ms per token", "tokens/s", "GB/s", "readable GB/s", "share",
                 "least", "most"});
  for (size_t m = 0; m < models.size(); ++m) {
    const double step = Median(decoding[m].seconds), bytes = models[m].matrix_bytes;
    const auto [least, most] =
        std::minmax_element(decoding[m].share.begin(), decoding[m].share.end());
    report->Row({Text(Name(models[m].format)), Number(bytes / 1e6, 0), Number(step * 1e3, 2),
                 Number(1 / step, 1), Number(bytes / step / 1e9, 2),
                 Number(Median(decoding[m].readable) / 1e9, 2),
                 Number(Median(decoding[m].share), 2), Number(*least, 2), Number(*most, 2)});
  }
  std::vector<std::string> columns = {"weights"};
  for (const int rows : kRows) columns.push_back(absl::StrCat(rows, " rows: ms"));
  columns.push_back("256 rows: GFLOP/s");
  report->Table("A step of several rows: token trees, prompts", columns);
  for (size_t m = 0; m < models.size(); ++m) {
    std::vector<Cell> cells = {Text(Name(models[m].format))};
    for (size_t b = 0; b < batches.size(); ++b) {
      cells.push_back(Number(Median(seconds[m][b]) * 1e3, 2));
    }
    cells.push_back(Number(models[m].flops * kMostRows / Median(seconds[m].back()) / 1e9, 0));
    report->Row(std::move(cells));
  }
  if (!OnGpu()) {
    report->Table(absl::StrCat("oneDNN's own products of a layer's largest matrix with ", kMostRows,
                               " rows, alone"),
                  {"type", "GFLOP/s"});
    for (const auto& [type, gflops] : reached) {
      report->Row({Text(Name(type)), Number(Median(gflops), 0)});
    }
  }
  for (const RunnerBatch* batch : {&batches.front(), &batches.back()}) {
    if (absl::Status s = ReportOperators(models, *batch, report); !s.ok()) return s;
  }
  report->Note(
      "Medians; formats in turns. Share: of each step in what was read just after it, array for "
      "array. A step also computes attention over the context, norms and logits; GFLOP/s count the "
      "matrices alone. oneDNN's results depend on the number of rows, ours do not; a type that is "
      "missing has no kernel in it for this processor.");
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("weight_formats");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "weight_formats: %s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
