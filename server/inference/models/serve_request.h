// What models are asked to be served with.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

// The field `workers` of a request whose places are to be chosen.
inline constexpr char kAutoWorkers[] = "auto";

// The request with its defaults filled in; InvalidArgument names the field that is wrong, or those
// that contradict each other.
absl::StatusOr<v1::ServeModelRequest> CompleteServeRequest(v1::ServeModelRequest request);

// Of a complete request: the LLM's, then the SSMs'; empty: to be chosen.
std::vector<v1::ModelPlacement> PlacementsOf(const v1::ServeModelRequest& request);

}  // namespace espalier
