#include "server/replay/check_inputs.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/artifacts/artifact_names.h"

namespace espalier {
namespace {

// An artifact that a job reads; `name` is empty: there is none.
struct Input {
  absl::string_view what;
  std::string name;
  std::string sha256;  // as recorded; empty: not known, or it does not matter
};

std::string ArtifactOf(const v1::Dataset& dataset) {
  absl::string_view artifact = dataset.uri();
  return absl::ConsumePrefix(&artifact, "artifact:") ? std::string(artifact) : "";
}

}  // namespace

absl::Status CheckInputs(const ArtifactStore& artifacts, const DatasetRoots& roots,
                         const v1::Recording& recording, const v1::TrainingSpec& spec,
                         bool validates) {
  const std::string run = absl::StrCat(recording.experiment(), "@", recording.version());
  const bool is_onnx = !spec.onnx_artifact().empty();
  const Input inputs[] = {
      {"dataset", ArtifactOf(spec.dataset()), recording.dataset_sha256()},
      {"validation dataset", ArtifactOf(spec.validation().dataset()),
       validates ? recording.validation_sha256() : ""},
      {"model", spec.init_artifact(), is_onnx || spec.has_graph() ? "" : recording.graph_sha256()},
      {"ONNX file", spec.onnx_artifact(), spec.has_graph() ? "" : recording.graph_sha256()},
      {"tokenizer", spec.tokenizer_artifact(), ""}};
  for (const auto& [what, name, sha256] : inputs) {
    if (name.empty()) continue;
    const absl::StatusOr<v1::Artifact> artifact = artifacts.Find(name);
    // Versions of models, and what boost-tunings make, cannot be uploaded.
    const bool uploaded = !absl::StrContains(name, '@') && CheckClientArtifactName(name).ok();
    if (artifact.ok() && !sha256.empty() && artifact->sha256() != sha256) {
      return absl::FailedPreconditionError(absl::StrCat(
          run, ": its ", what, ", the artifact '", name,
          "', was replaced: what is there now has the "
          "SHA-256 ",
          artifact->sha256().substr(0, 12), "..., what the run was made with had ",
          sha256.substr(0, 12), "...",
          uploaded ? absl::StrCat("; upload the former content under that name to replay the run: "
                                  "espalier models upload ",
                                  name, " PATH --replace --force")
                   : ""));
    }
    if (!absl::IsNotFound(artifact.status())) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        run, ": its ", what, ", the artifact '", name, "', was deleted, and a replay needs it",
        uploaded ? absl::StrCat("; upload the same content under that name to replay the run: "
                                "espalier models upload ",
                                name, " PATH")
                 : ""));
  }
  for (const auto& [what, uri] :
       {std::pair{"dataset", spec.dataset().uri()},
        std::pair{"validation dataset", spec.validation().dataset().uri()}}) {
    if (!absl::StartsWith(uri, "/")) continue;
    const absl::Status status = roots.Open(uri).status();
    if (!absl::IsNotFound(status) && !absl::IsPermissionDenied(status)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(run, ": its ", what, " '", uri,
                     "', which a replay needs, is not there any more: ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace espalier
