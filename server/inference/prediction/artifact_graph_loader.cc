#include "server/inference/prediction/artifact_graph_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "ops/graph/graph_proto.h"
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
    const absl::StatusOr<ArtifactFolder> folder = options_.folder(artifact);
    if (!folder.ok()) return folder.status();
    return files_->Open(JoinPath(folder->path(), kGraphFile)).ok();
  }

  absl::StatusOr<Loaded> Load(const std::string& artifact, const v1::GraphBatching& batching,
                              int max_queue) const override {
    absl::StatusOr<Loaded> loaded = LoadFolder(artifact, batching, max_queue);
    if (loaded.ok()) return loaded;
    return absl::Status(loaded.status().code(),
                        absl::StrCat("artifact '", artifact, "': ", loaded.status().message()));
  }

 private:
  absl::StatusOr<Loaded> LoadFolder(const std::string& artifact, const v1::GraphBatching& batching,
                                    int max_queue) const {
    const absl::StatusOr<ArtifactFolder> folder = options_.folder(artifact);
    if (!folder.ok()) return folder.status();
    const absl::StatusOr<std::string> bytes =
        ReadWholeFile(*files_, JoinPath(folder->path(), kGraphFile), kMaxGraphBytes);
    if (!bytes.ok()) return bytes.status();
    v1::Graph message;
    if (!message.ParseFromString(*bytes)) {
      return absl::DataLossError(absl::StrCat(kGraphFile, " holds no graph"));
    }
    absl::StatusOr<Graph> graph = FromProto(*options_.operators, message);
    if (!graph.ok()) return graph.status();
    const absl::StatusOr<PredictionGraph> prediction =
        MakePredictionGraph(*options_.operators, *std::move(graph));
    if (!prediction.ok()) return prediction.status();
    absl::StatusOr<std::unique_ptr<BatchRunner>> runner =
        MakeGraphRunner(*options_.operators, *prediction, folder->path(), batching.max_batch_size(),
                        NewCpuDevice({.threads = options_.threads, .budget = options_.memory}));
    if (!runner.ok()) return runner.status();
    Loaded loaded;
    loaded.parameters = prediction->parameters;
    Describe(prediction->signature.inputs, loaded.graph.mutable_inputs());
    Describe(prediction->signature.outputs, loaded.graph.mutable_outputs());
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
