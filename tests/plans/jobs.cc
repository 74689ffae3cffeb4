#include "tests/plans/jobs.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/models/llama.h"
#include "ops/onnx/import.h"
#include "server/jobs/attach_loss.h"

namespace espalier {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

}  // namespace

absl::StatusOr<SmallJob> DigitsCnn(const OpRegistry& registry) {
  SmallJob job;
  job.batch = 16;
  absl::StatusOr<std::string> model = ReadFile("tests/data/digits_cnn.onnx");
  if (!model.ok()) return model.status();
  absl::StatusOr<Graph> graph = ImportOnnx(registry, *model);
  if (!graph.ok()) return graph.status();
  job.graph = *std::move(graph);
  absl::Status status = AttachLoss(registry, "sparse_categorical_crossentropy", {"accuracy"},
                                   job.batch, DType::kI64, &job.graph);
  if (status.ok()) status = BindAndInfer(registry, job.batch, &job.graph);
  if (!status.ok()) return status;
  absl::StatusOr<std::string> digits = ReadFile("tests/data/digits.npz");
  if (!digits.ok()) return digits.status();
  auto dataset = Dataset::FromNpz(*digits, 0.1);
  if (!dataset.ok()) return dataset.status();
  job.dataset = *std::move(dataset);
  job.columns["labels"] = "y";
  return job;
}

absl::StatusOr<SmallJob> LanguageModel(const OpRegistry& registry) {
  SmallJob job;
  job.batch = 8;
  LlamaConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  absl::StatusOr<Graph> graph = BuildLlamaTraining(registry, config, 16);
  if (!graph.ok()) return graph.status();
  job.graph = *std::move(graph);
  if (absl::Status bound = BindAndInfer(registry, job.batch, &job.graph); !bound.ok()) return bound;
  absl::StatusOr<std::string> text = ReadFile("tests/data/genesis.txt");
  if (!text.ok()) return text.status();
  auto dataset = Dataset::FromText(*std::move(text), 16, 0.1);
  if (!dataset.ok()) return dataset.status();
  job.dataset = *std::move(dataset);
  return job;
}

}  // namespace espalier
