#include "tests/benchmarks/workload.h"

#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/graph/builder.h"
#include "ops/onnx/import.h"
#include "planner/testing/zoo/models.h"
#include "server/jobs/add_loss_and_metrics.h"

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
  if (work->batch == 0) work->batch = 512;
  work->tokens_per_step = static_cast<double>(work->batch);
  work->description = absl::StrCat("digits CNN (ONNX), batch ", work->batch);
  absl::StatusOr<std::string> onnx = ReadFile("tests/data/digits_cnn.onnx");
  if (!onnx.ok()) return onnx.status();
  absl::StatusOr<Graph> graph = ImportOnnx(registry, *onnx);
  if (!graph.ok()) return graph.status();
  work->graph = *std::move(graph);
  const Objective objective = {{{"sparse_categorical_crossentropy"}}, {{"accuracy"}}};
  LabelColumns labels;
  labels.classes = DType::kI64;
  absl::Status s =
      AddLossAndMetrics(registry, objective, labels, work->batch, &work->graph).status();
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
  if (work->batch == 0) work->batch = work->name == "lm" ? 8 : 16;
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

// Examples of uniform noise with alternating classes, sufficient to time steps.
absl::StatusOr<std::shared_ptr<const Dataset>> Noise(const std::string& input, const Dims& dims,
                                                     int classes) {
  constexpr int64_t kExamples = 512;
  const int64_t size = NumElements(dims);
  std::vector<float> values(static_cast<size_t>(kExamples * size));
  uint32_t state = 1;
  for (float& value : values) {
    state = 1664525u * state + 1013904223u;  // Numerical Recipes
    value = static_cast<float>(state >> 8) / static_cast<float>(1 << 24) - 0.5f;
  }
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < kExamples; ++i) labels.push_back(static_cast<int32_t>(i % classes));
  const auto bytes = [](const auto& list) {
    const char* data = reinterpret_cast<const char*>(list.data());
    return std::vector<char>(data, data + list.size() * sizeof(list[0]));
  };
  return Dataset::FromColumns(
      {{input, {DType::kF32, dims}, bytes(values)}, {"labels", {DType::kI32, {}}, bytes(labels)}},
      0);
}

absl::Status FillMlp(const OpRegistry& registry, Workload* work) {
  constexpr int64_t kInput = 512, kWidth = 1024;
  constexpr int kClasses = 16;
  if (work->batch == 0) work->batch = 240;
  work->tokens_per_step = static_cast<double>(work->batch);
  work->description = absl::StrCat("MLP of four layers, width ", kWidth, ", batch ", work->batch);
  GraphBuilder b(registry, "mlp");
  const Initializer init{Initializer::kNormal, 0.03};
  ValueId x = b.Input("x", DType::kF32, {-1, kInput});
  const std::vector<int64_t> widths = {kInput, kWidth, kWidth, kWidth, kClasses};
  for (size_t i = 1; i < widths.size(); ++i) {
    const std::string name = absl::StrCat("layer", i);
    x = b.Op("linear",
             {x, b.Parameter(name + ".weight", DType::kF32, {widths[i], widths[i - 1]}, init)}, {},
             name);
    if (i + 1 < widths.size()) x = b.Op("gelu", {x}, {}, name + ".gelu");
  }
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {x, labels}, {}, "loss"));
  absl::StatusOr<Graph> graph = b.Build();
  if (!graph.ok()) return graph.status();
  work->graph = *std::move(graph);
  auto dataset = Noise("x", {kInput}, kClasses);
  if (!dataset.ok()) return dataset.status();
  work->dataset = *std::move(dataset);
  return absl::OkStatus();
}

absl::Status FillResNet(const OpRegistry& registry, Workload* work) {
  const zoo::ResNetSizes sizes{.edge = 64, .width = 16, .classes = 10};
  if (work->batch == 0) work->batch = 12;
  work->tokens_per_step = static_cast<double>(work->batch);
  work->description = absl::StrCat("ResNet-50, ", sizes.width, " channels for 64, images of ",
                                   sizes.edge, "^2, batch ", work->batch);
  absl::StatusOr<Graph> graph = zoo::BuildResNet50(registry, sizes);
  if (!graph.ok()) return graph.status();
  work->graph = *std::move(graph);
  auto dataset = Noise("image", {sizes.channels, sizes.edge, sizes.edge}, 10);
  if (!dataset.ok()) return dataset.status();
  work->dataset = *std::move(dataset);
  return absl::OkStatus();
}

}  // namespace

LlamaConfig LlamaOf(const std::string& name) {
  // "llm" and "ssm" as client/cli/model_flags.cc has them.
  if (name == "ssm") return Llama(128, 2, 4, 2, 352);
  return Llama(256, name == "lm" ? 4 : 6, 8, 4, 704);
}

absl::StatusOr<Workload> MakeWorkload(const OpRegistry& registry, const std::string& name,
                                      int64_t batch) {
  using Fill = absl::Status (*)(const OpRegistry&, Workload*);
  static constexpr std::pair<const char*, Fill> kWorkloads[] = {
      {"cnn", FillCnn},   {"lm", FillLlama}, {"llm", FillLlama},
      {"ssm", FillLlama}, {"mlp", FillMlp},  {"resnet", FillResNet}};
  Workload work;
  work.name = name;
  work.batch = batch;
  absl::Status filled;
  bool found = false;
  for (const auto& [known, fill] : kWorkloads) {
    if (name != known) continue;
    found = true;
    filled = fill(registry, &work);
  }
  if (!found) {
    return absl::InvalidArgumentError(
        absl::StrCat("no workload '", name, "'; there are cnn, lm, llm, ssm, mlp and resnet"));
  }
  if (!filled.ok()) return filled;
  if (absl::Status s = BindAndInfer(registry, work.batch, &work.graph); !s.ok()) return s;
  work.optimizer.set_name("adamw");
  work.optimizer.mutable_learning_rate()->set_peak(1e-3);
  (*work.optimizer.mutable_attributes())["weight_decay"].set_f(0.01);
  work.optimizer.set_clip_norm(1.0);
  return work;
}

}  // namespace espalier
