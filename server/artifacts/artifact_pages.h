// Lists of artifacts: filters and pages.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "espalier/v1/models.pb.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

// Fills in the reply's page of artifacts that the caller may see. Artifacts that come or go between
// two pages make no other one appear twice or not at all. Returns InvalidArgument, naming the
// field, for a bad page_size, page_token or kind.
absl::Status ListArtifacts(const ArtifactStore& artifacts, const v1::ListArtifactsRequest& request,
                           const std::function<bool(const std::string& owner)>& may_see,
                           v1::ListArtifactsReply* reply);

}  // namespace espalier
