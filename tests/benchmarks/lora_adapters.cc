// The cost of LoRA adapters: step times of a LLaMA with random weights without adapters, and with
// eight adapters, of which the rows use none, one, or one each.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "models/lora.h"
#include "models/quantize.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "tests/benchmarks/dummy_batch.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"
#include "worker/device/device.h"
#include "worker/runner/program_model_runner.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, threads, 2, "");
ABSL_FLAG(int, layers, 4, "layers of the model, otherwise as LLaMA 1B");
ABSL_FLAG(int, rank, 16, "rank of the adapters of every linear layer");
ABSL_FLAG(int, adapters, 8, "");
ABSL_FLAG(std::string, weights, "f32", "weight format of the model's matrices");
ABSL_FLAG(int, rounds, 7, "turns");

namespace espalier {
namespace {

constexpr int kRows[] = {1, 8, 64, 256};
constexpr int kMostRows = 256;

struct Model {
  std::unique_ptr<Device> device;
  std::unique_ptr<ProgramModelRunner> runner;
};

std::string Config() {
  return absl::StrCat(
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 4096, "hidden_size": 2048,
          "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4,
          "head_dim": 64, "max_position_embeddings": 1024, "num_hidden_layers": )",
      absl::GetFlag(FLAGS_layers), "}");
}

// Returns an adapter of every linear layer except the LM head.
LoraAdapter EveryLayer(const Graph& graph) {
  const int64_t rank = absl::GetFlag(FLAGS_rank);
  LoraAdapter adapter{"adapter", {rank, 2, {}}, {}};
  for (const Node& node : graph.nodes()) {
    if (node.op != "linear" || node.name == "lm_head") continue;
    const Dims& dims = graph.value(node.inputs[1]).type.dims;
    adapter.tensors[absl::StrCat("base_model.model.", node.name, ".lora_A.weight")] = {rank,
                                                                                       dims[1]};
    adapter.tensors[absl::StrCat("base_model.model.", node.name, ".lora_B.weight")] = {dims[0],
                                                                                       rank};
  }
  return adapter;
}

// Parameters keep their initial values, which do not affect speed.
absl::StatusOr<Model> Make(const OpRegistry& registry, bool adapted) {
  absl::StatusOr<LanguageModel> model = ReadModel(Config());
  if (!model.ok()) return model.status();
  ServingShape shape;
  shape.max_rows = shape.max_output_rows = kMostRows;
  shape.kv_slots = shape.max_context_slots = kMostRows;
  shape.max_sequences = kMostRows;
  shape.max_ancestor_slots = 1;
  absl::StatusOr<ServingModel> serving = BuildServing(registry, *model, shape);
  if (!serving.ok()) return serving.status();
  if (absl::Status s = BindAndInfer(registry, 1, &serving->graph); !s.ok()) return s;
  if (adapted) {
    const std::vector<LoraAdapter> adapters(static_cast<size_t>(absl::GetFlag(FLAGS_adapters)),
                                            EveryLayer(serving->graph));
    absl::StatusOr<LoraModel> with = AddLoraAdapters(registry, *std::move(serving), adapters);
    if (!with.ok()) return with.status();
    serving = std::move(with->model);
  }
  const absl::StatusOr<WeightFormat> format = WeightFormatOf(absl::GetFlag(FLAGS_weights));
  if (!format.ok()) return format.status();
  serving = QuantizeServing(registry, *std::move(serving), *format);
  if (!serving.ok()) return serving.status();
  absl::StatusOr<v1::Program> program = LowerServing(registry, serving->graph);
  if (!program.ok()) return program.status();
  Model out;
  out.device = NewCpuDevice({absl::GetFlag(FLAGS_threads), int64_t{12} << 30});
  auto runner = ProgramModelRunner::Create(*program, "", 1024, out.device.get());
  if (!runner.ok()) return runner.status();
  out.runner = *std::move(runner);
  return out;
}

// `adapters`: number of adapters that the rows use in turn.
RunnerBatch Batch(int rows, int adapters) {
  RunnerBatch batch = DummyBatch(rows);
  for (int r = 0; r < rows && adapters > 0; ++r) batch.row_adapter.push_back(r % adapters);
  return batch;
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  absl::StatusOr<Model> plain = Make(registry, false), adapted = Make(registry, true);
  if (!plain.ok()) return plain.status();
  if (!adapted.ok()) return adapted.status();
  const struct {
    const char* name;
    Model* model;
    int adapters;
  } ways[] = {{"a model without adapters", &*plain, 0},
              {"rows that have none", &*adapted, 0},
              {"all rows the same", &*adapted, 1},
              {"rows in turn", &*adapted, absl::GetFlag(FLAGS_adapters)}};
  std::vector<std::vector<std::vector<double>>> seconds(
      std::size(ways), std::vector<std::vector<double>>(std::size(kRows)));
  for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (size_t r = 0; r < std::size(kRows); ++r) {
      for (size_t w = 0; w < std::size(ways); ++w) {
        const RunnerBatch batch = Batch(kRows[r], ways[w].adapters);
        const int repeats = kRows[r] > 32 ? 1 : 4;
        RunnerOutput logits;
        const double start = Seconds();
        for (int i = 0; i < repeats; ++i) {
          absl::Status status = ways[w].model->runner->Step(batch, &logits);
          if (!status.ok()) return status;
        }
        if (round >= 0) seconds[w][r].push_back((Seconds() - start) / repeats);  // the first warms
      }
    }
  }
  std::vector<std::string> columns = {"rows choose"};
  for (const int rows : kRows) {
    columns.push_back(absl::StrCat(rows, " rows: ms"));
    columns.push_back("times");
  }
  report->Table(
      absl::StrCat(absl::GetFlag(FLAGS_adapters), " adapters of rank ", absl::GetFlag(FLAGS_rank),
                   ", matrices in ", absl::GetFlag(FLAGS_weights), ", ",
                   absl::GetFlag(FLAGS_threads), " threads"),
      columns);
  for (size_t w = 0; w < std::size(ways); ++w) {
    std::vector<Cell> cells = {Text(ways[w].name)};
    for (size_t r = 0; r < std::size(kRows); ++r) {
      cells.push_back(Number(Median(seconds[w][r]) * 1e3, 2));
      cells.push_back(Number(Median(seconds[w][r]) / Median(seconds[0][r]), 3));
    }
    report->Row(std::move(cells));
  }
  report->Note("Medians; ways in turns.");
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("lora_adapters");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "lora_adapters: %s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
