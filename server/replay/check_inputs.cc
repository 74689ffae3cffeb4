#include "server/replay/check_inputs.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/artifacts/artifact_names.h"

namespace espalier {
namespace {

std::string ArtifactOf(const v1::Dataset& dataset) {
  absl::string_view artifact = dataset.uri();
  return absl::ConsumePrefix(&artifact, "artifact:") ? std::string(artifact) : "";
}

}  // namespace

absl::Status CheckInputs(const ArtifactStore& artifacts, const DatasetRoots& roots,
                         const std::string& run, const v1::TrainingSpec& spec) {
  const std::pair<absl::string_view, std::string> inputs[] = {
      {"dataset", ArtifactOf(spec.dataset())},
      {"validation dataset", ArtifactOf(spec.validation().dataset())},
      {"model", spec.init_artifact()},
      {"ONNX file", spec.onnx_artifact()},
      {"tokenizer", spec.tokenizer_artifact()}};
  for (const auto& [what, name] : inputs) {
    if (name.empty() || !absl::IsNotFound(artifacts.Find(name).status())) continue;
    // Versions of models, and what boost-tunings make, cannot be uploaded.
    const bool uploaded = !absl::StrContains(name, '@') && CheckClientArtifactName(name).ok();
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
