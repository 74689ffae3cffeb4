// Defaults and checks of ServeModelRequest.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

// Value of the field `workers` that has the coordinator choose the placement.
inline constexpr char kAutoWorkers[] = "auto";

// Returns the request with defaults filled in. Returns InvalidArgument naming the invalid or
// contradictory fields.
absl::StatusOr<v1::ServeModelRequest> CompleteServeRequest(v1::ServeModelRequest request);

// The same for an artifact that is a trained graph.
absl::StatusOr<v1::ServeModelRequest> CompleteGraphRequest(const v1::ServeModelRequest& given);

// Returns the names of all artifacts of a request: the LLM's, then those of SSMs and adapters.
std::vector<std::string> ArtifactsOf(const v1::ServeModelRequest& request);
// Returns the version to load for each of them: the name itself where none is recorded.
std::map<std::string, std::string> VersionsOf(const v1::ServeModelRequest& request);

// Returns the placements of the LLM, then of the SSMs, of a completed request. Empty: to be chosen.
std::vector<v1::ModelPlacement> PlacementsOf(const v1::ServeModelRequest& request);

}  // namespace espalier
