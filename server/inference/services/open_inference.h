// What the Open Inference Protocol asks of a server, for gRPC and HTTP alike. A model has one
// version, "1", which may also be left out; adapters count as models.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "open_inference/open_inference.pb.h"
#include "server/inference/models/model_server.h"

namespace espalier {

inference::ServerMetadataResponse DescribeServer(const std::string& version);

// Whether every served model answers requests; true if none is served. That requests are admitted
// at all is for the caller to know.
bool AllModelsReady(const ModelServer& models);

// NotFound for a model or a version that there is not; false of one that is not loaded (yet).
absl::StatusOr<bool> ModelReady(const inference::ModelReadyRequest& request,
                                const ModelServer& models);
// NotFound likewise; Unavailable while it is not loaded, and once the server drains.
absl::StatusOr<inference::ModelMetadataResponse> DescribeModel(
    const inference::ModelMetadataRequest& request, const ModelServer& models);

}  // namespace espalier
