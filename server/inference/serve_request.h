// What models are asked to be served with.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"

namespace espalier {

// The field `workers` of a request whose places are to be chosen.
inline constexpr char kAutoWorkers[] = "auto";

// The request with its defaults filled in; InvalidArgument names the field that is wrong, or those
// that contradict each other.
absl::StatusOr<proto::ServeModelRequest> CompleteServeRequest(proto::ServeModelRequest request);

// Of a complete request: the LLM's, then the SSMs'; empty: to be chosen.
std::vector<proto::ModelPlacement> PlacementsOf(const proto::ServeModelRequest& request);

}  // namespace espalier
