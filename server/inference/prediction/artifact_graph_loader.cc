#include "server/inference/prediction/artifact_graph_loader.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/take_initial_values.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "server/artifacts/onnx_file.h"
#include "server/inference/prediction/graph_runner.h"
#include "server/inference/prediction/prediction_graph.h"
#include "worker/device/device.h"

namespace espalier {
namespace {

constexpr char kGraphFile[] = "graph.pb";  // as in server/jobs/export_model.cc
constexpr int64_t kMaxGraphBytes = int64_t{1} << 30;

void Describe(const std::vector<GraphTensorType>& tensors,
              google::protobuf::RepeatedPtrField<v1::GraphTensor>* out) {
  for (const GraphTensorType& tensor : tensors) {
    v1::GraphTensor* described = out->Add();
    described->set_name(tensor.name);
    described->mutable_example()->set_dtype(ToProto(tensor.example.dtype));
    for (const int64_t dim : tensor.example.dims) described->mutable_example()->add_dims(dim);
  }
}

class ArtifactGraphLoader : public GraphLoader {
 public:
  explicit ArtifactGraphLoader(ArtifactGraphLoaderOptions options) : options_(std::move(options)) {}

  absl::StatusOr<bool> IsGraph(const std::string& artifact) const override {
    const absl::StatusOr<v1::Artifact> found = options_.find(artifact);
    if (!found.ok()) return found.status();
    return found->kind() == v1::Artifact::ONNX || HasFile(*found, kGraphFile);
  }

  absl::StatusOr<Loaded> Load(const std::string& artifact, const v1::GraphBatching& batching,
                              int max_queue) const override {
    absl::StatusOr<Loaded> loaded = LoadFolder(artifact, batching, max_queue);
    if (loaded.ok()) return loaded;
    return absl::Status(loaded.status().code(),
                        absl::StrCat("artifact '", artifact, "': ", loaded.status().message()));
  }

 private:
  struct Source {
    Graph graph;
    ParameterReader parameters;
  };

  static bool HasFile(const v1::Artifact& artifact, const std::string& name) {
    return std::find(artifact.files().begin(), artifact.files().end(), name) !=
           artifact.files().end();
  }

  absl::StatusOr<Source> ReadTrained(const std::string& folder) const {
    const absl::StatusOr<std::string> bytes =
        ReadWholeFile(*files_, JoinPath(folder, kGraphFile), kMaxGraphBytes);
    if (!bytes.ok()) return bytes.status();
    v1::Graph message;
    if (!message.ParseFromString(*bytes)) {
      return absl::DataLossError(absl::StrCat(kGraphFile, " holds no graph"));
    }
    absl::StatusOr<Graph> graph = FromProto(*options_.operators, message);
    if (!graph.ok()) return graph.status();
    return Source{*std::move(graph), ParametersOfFolder(folder)};
  }

  absl::StatusOr<Source> ReadOnnx(const v1::Artifact& artifact, const std::string& folder) const {
    const absl::StatusOr<std::string> name =
        OnnxFileAmong({artifact.files().begin(), artifact.files().end()});
    if (!name.ok()) return name.status();
    const std::string path = JoinPath(folder, *name);
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = files_->Open(path);
    if (!file.ok()) return file.status();
    ImportOptions options;
    options.folder = std::filesystem::path(path).parent_path();
    options.evaluator = CpuEvaluator();
    absl::StatusOr<ImportedModel> model =
        ImportOnnxFile(*options_.operators, *std::move(file), options);
    if (!model.ok()) return model.status();
    std::vector<InitialValue> values = TakeInitialValues(&model->graph);
    std::move(model->values.begin(), model->values.end(), std::back_inserter(values));
    return Source{std::move(model->graph), ParametersOfValues(std::move(values))};
  }

  absl::StatusOr<Loaded> LoadFolder(const std::string& artifact, const v1::GraphBatching& batching,
                                    int max_queue) const {
    const absl::StatusOr<v1::Artifact> found = options_.find(artifact);
    if (!found.ok()) return found.status();
    const absl::StatusOr<ArtifactFolder> folder = options_.folder(artifact);
    if (!folder.ok()) return folder.status();
    absl::StatusOr<Source> source = found->kind() == v1::Artifact::ONNX
                                        ? ReadOnnx(*found, folder->path())
                                        : ReadTrained(folder->path());
    if (!source.ok()) return source.status();
    const absl::StatusOr<PredictionGraph> prediction =
        MakePredictionGraph(*options_.operators, std::move(source->graph));
    if (!prediction.ok()) return prediction.status();
    absl::StatusOr<std::unique_ptr<BatchRunner>> runner = MakeGraphRunner(
        *options_.operators, *prediction, source->parameters, batching.max_batch_size(),
        NewCpuDevice({.threads = options_.threads, .budget = options_.memory}));
    if (!runner.ok()) return runner.status();
    Loaded loaded;
    loaded.parameters = prediction->parameters;
    Describe(prediction->signature.inputs, loaded.graph.mutable_inputs());
    Describe(prediction->signature.outputs, loaded.graph.mutable_outputs());
    loaded.graph.mutable_notes()->Assign(prediction->notes.begin(), prediction->notes.end());
    *loaded.graph.mutable_batching() = batching;
    loaded.graph.mutable_batching()->set_max_batch_size(
        static_cast<int32_t>((*runner)->max_batch()));
    PredictorOptions options;
    options.max_delay = absl::Microseconds(batching.max_queue_delay_microseconds());
    options.max_queue = max_queue;
    options.clock = options_.clock;
    loaded.predictor = std::make_unique<Predictor>(*std::move(runner), options);
    return loaded;
  }

  const ArtifactGraphLoaderOptions options_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

}  // namespace

std::unique_ptr<GraphLoader> NewArtifactGraphLoader(ArtifactGraphLoaderOptions options) {
  return std::make_unique<ArtifactGraphLoader>(std::move(options));
}

}  // namespace espalier
