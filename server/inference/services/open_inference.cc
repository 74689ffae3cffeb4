#include "server/inference/services/open_inference.h"

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr char kName[] = "espalier";
constexpr char kVersion[] = "1";

absl::StatusOr<ModelServer::Target> Find(const std::string& name, const std::string& version,
                                         const Caller& caller, const ModelServer& models) {
  absl::StatusOr<ModelServer::Target> target = models.Resolve(name, caller);
  if (target.ok() && !version.empty() && version != kVersion) {
    return absl::NotFoundError(absl::StrCat("model '", name, "' has no version '",
                                            version.substr(0, 100), "'; its only one is ",
                                            kVersion));
  }
  return target;
}

void AddText(const char* name, inference::ModelMetadataResponse::TensorMetadata* tensor) {
  tensor->set_name(name);
  tensor->set_datatype("BYTES");
  tensor->add_shape(1);
}

}  // namespace

inference::ServerMetadataResponse DescribeServer(const std::string& version) {
  inference::ServerMetadataResponse response;
  response.set_name(kName);
  response.set_version(version);
  return response;
}

bool AllModelsReady(const ModelServer& models) {
  for (const v1::ServedModel& model : models.ListWithFailed()) {
    if (!AnswersRequests(model)) return false;
  }
  return true;
}

absl::StatusOr<bool> ModelReady(const inference::ModelReadyRequest& request, const Caller& caller,
                                const ModelServer& models) {
  const absl::StatusOr<ModelServer::Target> target =
      Find(request.name(), request.version(), caller, models);
  if (absl::IsUnavailable(target.status())) return false;  // loading, or the server drains
  if (!target.ok()) return target.status();
  return AnswersRequests(Describe(*target->model));
}

absl::StatusOr<inference::ModelMetadataResponse> DescribeModel(
    const inference::ModelMetadataRequest& request, const Caller& caller,
    const ModelServer& models) {
  const absl::Status found = Find(request.name(), request.version(), caller, models).status();
  if (!found.ok()) return found;
  inference::ModelMetadataResponse response;
  response.set_name(request.name());
  response.add_versions(kVersion);
  response.set_platform(kName);
  AddText("prompt", response.add_inputs());
  AddText("text", response.add_outputs());
  return response;
}

}  // namespace espalier
