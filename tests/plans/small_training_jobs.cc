#include "tests/plans/small_training_jobs.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "ops/graph/builder.h"
#include "ops/onnx/import.h"
#include "server/jobs/add_example_weights.h"
#include "server/jobs/add_loss_and_metrics.h"

namespace espalier {
namespace {

constexpr int32_t kIgnoredLabel = -100;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

}  // namespace

absl::StatusOr<SmallTrainingJob> DigitsCnn(const OpRegistry& registry) {
  SmallTrainingJob job;
  job.batch = 16;
  absl::StatusOr<std::string> model = ReadFile("tests/data/digits_cnn.onnx");
  if (!model.ok()) return model.status();
  absl::StatusOr<Graph> graph = ImportOnnx(registry, *model);
  if (!graph.ok()) return graph.status();
  job.graph = *std::move(graph);
  const Objective objective = {{{"sparse_categorical_crossentropy"}}, {{"accuracy"}}};
  LabelColumns labels;
  labels.classes = DType::kI64;
  absl::Status status =
      AddLossAndMetrics(registry, objective, labels, job.batch, &job.graph).status();
  if (status.ok()) status = BindAndInfer(registry, job.batch, &job.graph);
  if (!status.ok()) return status;
  absl::StatusOr<std::string> digits = ReadFile("tests/data/digits.npz");
  if (!digits.ok()) return digits.status();
  auto dataset = Dataset::FromNpz(*digits, 0.1);
  if (!dataset.ok()) return dataset.status();
  job.dataset = *std::move(dataset);
  job.columns["labels"] = "y";
  AddExampleWeights(registry, job.batch, &job.graph, &job.columns);
  return job;
}

absl::StatusOr<SmallTrainingJob> DeepCnn(const OpRegistry& registry, int layers, int64_t batch) {
  // Data and column names of the small CNN.
  absl::StatusOr<SmallTrainingJob> job = DigitsCnn(registry);
  if (!job.ok()) return job.status();
  job->batch = batch;
  std::string images;
  for (const Value& value : job->graph.values()) {
    if (value.kind == ValueKind::kInput && value.type.dims.size() == 4) images = value.name;
  }
  constexpr int64_t kChannels = 16;
  GraphBuilder b(registry, "deep_cnn");
  const Initializer init{Initializer::kHeNormal};
  const Attributes conv = {{"pads", std::vector<int64_t>{1, 1, 1, 1}}};
  const auto convolve = [&](ValueId x, int64_t in, const std::string& name) {
    const ValueId y =
        b.Op("conv2d", {x, b.Parameter(name + ".weight", DType::kF32, {kChannels, in, 3, 3}, init)},
             conv, name);
    return b.Op("gelu", {y}, {}, name + ".gelu");
  };
  ValueId h = convolve(b.Input(images, DType::kF32, {-1, 1, 8, 8}), 1, "first");
  for (int i = 0; i < layers; ++i) {
    const std::string name = absl::StrCat("layer", i);
    h = b.Op("add", {h, convolve(h, kChannels, name)}, {}, name + ".add");
  }
  h = b.Op("flatten", {h}, {}, "flatten");
  h = b.Op("linear", {h, b.Parameter("head.weight", DType::kF32, {10, 64 * kChannels}, init)}, {},
           "head");
  const ValueId labels = b.Input("labels", DType::kI64, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  absl::StatusOr<Graph> graph = b.Build();
  if (!graph.ok()) return graph.status();
  job->graph = *std::move(graph);
  if (absl::Status bound = BindAndInfer(registry, batch, &job->graph); !bound.ok()) return bound;
  return job;
}

absl::StatusOr<SmallTrainingJob> SmallLlama(const OpRegistry& registry, int layers,
                                            int64_t sequence, int64_t batch) {
  SmallTrainingJob job;
  job.batch = batch;
  LlamaConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_layers = layers;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  absl::StatusOr<Graph> graph = BuildLlamaTraining(registry, config, sequence);
  if (!graph.ok()) return graph.status();
  job.graph = *std::move(graph);
  if (absl::Status bound = BindAndInfer(registry, job.batch, &job.graph); !bound.ok()) return bound;
  absl::StatusOr<std::string> text = ReadFile("tests/data/genesis.txt");
  if (!text.ok()) return text.status();
  auto dataset = Dataset::FromText(*std::move(text), sequence, 0.1);
  if (!dataset.ok()) return dataset.status();
  job.dataset = *std::move(dataset);
  return job;
}

absl::StatusOr<SmallTrainingJob> SmallLlamaWithIgnoredLabels(const OpRegistry& registry, int layers,
                                                             int64_t sequence, int64_t batch) {
  absl::StatusOr<SmallTrainingJob> job = SmallLlama(registry, layers, sequence, batch);
  if (!job.ok()) return job.status();
  const int64_t examples = job->dataset->examples();
  std::vector<Column> columns;
  for (const Column& text : job->dataset->columns()) {
    std::vector<int32_t> values(static_cast<size_t>(examples * sequence));
    for (int64_t e = 0; e < examples; ++e) {
      char* const row = reinterpret_cast<char*>(values.data() + e * sequence);
      absl::Status read = job->dataset->Read(text, e, {0}, {sequence}, DType::kI32, row);
      if (!read.ok()) return read;
      if (text.name != "targets") continue;
      for (int64_t s = 0; s < sequence; ++s) {
        const bool counts = e % 5 != 0 && (s >= sequence / 2 || s % 2 == 0);
        if (!counts) values[static_cast<size_t>(e * sequence + s)] = kIgnoredLabel;
      }
    }
    Column column{text.name, text.example, {}};
    column.data.resize(values.size() * sizeof(int32_t));
    std::memcpy(column.data.data(), values.data(), column.data.size());
    columns.push_back(std::move(column));
    job->columns[text.name] = text.name;
  }
  auto dataset = Dataset::FromColumns(std::move(columns), 0.1);
  if (!dataset.ok()) return dataset.status();
  job->dataset = *std::move(dataset);
  AddExampleWeights(registry, batch, &job->graph, &job->columns);
  return job;
}

}  // namespace espalier
