// Health and metadata of the Open Inference Protocol (KServe V2), for gRPC and HTTP. A model has
// one version, "1", which may be omitted; adapters count as models.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/net/caller.h"
#include "open_inference/open_inference.pb.h"
#include "server/inference/models/model_server.h"

namespace espalier {

inference::ServerMetadataResponse DescribeServer(const std::string& version);

// Returns whether all served models answer requests; true if none is served. The caller checks
// whether requests are admitted at all.
bool AllModelsReady(const ModelServer& models);

// Returns NotFound for an unknown model or version; false while it is not loaded.
absl::StatusOr<bool> ModelReady(const inference::ModelReadyRequest& request, const Caller& caller,
                                const ModelServer& models);
// Returns NotFound for an unknown model or version; Unavailable while it is not loaded or the
// server drains.
absl::StatusOr<inference::ModelMetadataResponse> DescribeModel(
    const inference::ModelMetadataRequest& request, const Caller& caller,
    const ModelServer& models);

}  // namespace espalier
