#include "tests/benchmarks/workload.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "ops/onnx/import.h"
#include "server/jobs/attach_loss.h"

namespace espalier {
namespace {

constexpr int kSequence = 128;
constexpr double kHoldout = 0.1;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, "; run from the repository"));
  }
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

LlamaConfig Llama(int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                  int64_t intermediate) {
  LlamaConfig config;
  config.hidden_size = hidden;
  config.num_layers = layers;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = hidden / heads;
  config.intermediate_size = intermediate;
  return config;
}

absl::Status FillCnn(const OpRegistry& registry, Workload* work) {
  work->batch = 512;
  work->tokens_per_step = 512;
  work->description = "digits CNN (ONNX), batch 512";
  absl::StatusOr<std::string> onnx = ReadFile("tests/data/digits_cnn.onnx");
  if (!onnx.ok()) return onnx.status();
  absl::StatusOr<Graph> graph = ImportOnnx(registry, *onnx);
  if (!graph.ok()) return graph.status();
  work->graph = *std::move(graph);
  absl::Status s = AttachLoss(registry, "sparse_categorical_crossentropy", {"accuracy"},
                              work->batch, DType::kI64, &work->graph);
  if (!s.ok()) return s;
  work->columns["labels"] = "y";
  absl::StatusOr<std::string> npz = ReadFile("tests/data/digits.npz");
  if (!npz.ok()) return npz.status();
  auto dataset = Dataset::FromNpz(*npz, kHoldout);
  if (!dataset.ok()) return dataset.status();
  work->dataset = *dataset;
  return absl::OkStatus();
}

absl::Status FillLlama(const OpRegistry& registry, Workload* work) {
  const LlamaConfig config = LlamaOf(work->name);
  work->batch = work->name == "lm" ? 8 : 16;
  work->tokens_per_step = static_cast<double>(work->batch * kSequence);
  work->description = absl::StrCat("LLaMA, hidden ", config.hidden_size, ", ", config.num_layers,
                                   " layers, ", CountParameters(config), " parameters, batch ",
                                   work->batch, " of ", kSequence, " tokens");
  absl::StatusOr<Graph> graph = BuildLlamaTraining(registry, config, kSequence);
  if (!graph.ok()) return graph.status();
  work->graph = *std::move(graph);
  absl::StatusOr<std::string> text = ReadFile("tests/data/genesis.txt");
  if (!text.ok()) return text.status();
  auto dataset = Dataset::FromText(*text, kSequence, kHoldout);
  if (!dataset.ok()) return dataset.status();
  work->dataset = *dataset;
  return absl::OkStatus();
}

}  // namespace

LlamaConfig LlamaOf(const std::string& name) {
  // "llm" and "ssm" as client/cli/model_flags.cc has them.
  if (name == "ssm") return Llama(128, 2, 4, 2, 352);
  return Llama(256, name == "lm" ? 4 : 6, 8, 4, 704);
}

absl::StatusOr<Workload> MakeWorkload(const OpRegistry& registry, const std::string& name) {
  Workload work;
  work.name = name;
  if (name != "cnn" && name != "lm" && name != "llm" && name != "ssm") {
    return absl::InvalidArgumentError(
        absl::StrCat("no workload '", name, "'; there are cnn, lm, llm and ssm"));
  }
  absl::Status filled = name == "cnn" ? FillCnn(registry, &work) : FillLlama(registry, &work);
  if (!filled.ok()) return filled;
  if (absl::Status s = BindAndInfer(registry, work.batch, &work.graph); !s.ok()) return s;
  work.optimizer.set_name("adamw");
  work.optimizer.mutable_learning_rate()->set_peak(1e-3);
  (*work.optimizer.mutable_attributes())["weight_decay"].set_f(0.01);
  work.optimizer.set_clip_norm(1.0);
  return work;
}

}  // namespace espalier
