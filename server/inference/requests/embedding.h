// Executes an EmbedRequest, for gRPC and HTTP.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"
#include "server/inference/requests/generation.h"

namespace espalier {

// Limits per request.
inline constexpr int kMaxEmbedInputs = 2048;
inline constexpr int64_t kMaxEmbedNumbers = int64_t{1} << 22;  // in the reply

// Called once, on the engine's thread; must not block. Cancellation is an error, too.
using EmbeddingListener = std::function<void(absl::StatusOr<v1::EmbedReply>)>;

// Checks a request and submits its inputs, at most so many at a time that the queue never rejects
// them if there are no other clients. `metrics` may be null. Returns errors that are known at once,
// naming the field; later ones go to the listener.
absl::StatusOr<std::shared_ptr<Generation>> StartEmbedding(v1::EmbedRequest request,
                                                           ModelServer::Target target,
                                                           ServingMetrics* metrics,
                                                           EmbeddingListener listener);

}  // namespace espalier
