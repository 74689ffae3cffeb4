#include "server/jobs/export_model.h"

#include <filesystem>

#include "ops/graph/graph_proto.h"
#include "worker/checkpoint/manifest.h"

namespace espalier {

absl::Status ExportModel(FileSystem* files, ArtifactStore* artifacts, const Graph& graph,
                         const std::string& checkpoint_directory, const std::string& job_id,
                         const std::string& name) {
  auto family = graph.metadata.find("family");
  auto config = graph.metadata.find("config");
  const bool known = family != graph.metadata.end() && config != graph.metadata.end();

  absl::StatusOr<std::string> staging = artifacts->MakeStagingFolder();
  if (!staging.ok()) return staging.status();
  absl::Status status = ExportHuggingFace(
      *files, checkpoint_directory,
      known ? config->second : "{\n  \"model_type\": \"espalier_graph\"\n}\n", *staging);
  if (status.ok() && !known) {
    proto::Graph message = ToProto(graph);
    for (proto::Value& value : *message.mutable_values()) {
      if (value.kind() == proto::PARAMETER) value.clear_data();
    }
    status =
        WriteFileAtomically(*files, JoinPath(*staging, "graph.pb"), message.SerializeAsString());
  }
  if (status.ok()) {
    status = artifacts
                 ->Adopt(*staging, name, proto::Artifact::MODEL,
                         {{"job", job_id}, {"family", known ? family->second : "graph"}})
                 .status();
  }
  if (!status.ok()) {
    std::error_code ignored;
    std::filesystem::remove_all(*staging, ignored);
  }
  return status;
}

}  // namespace espalier
