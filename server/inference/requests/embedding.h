// Carries an EmbedRequest out, for gRPC and HTTP alike.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/requests/generation.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Limits of one request.
inline constexpr int kMaxEmbedInputs = 2048;
inline constexpr int64_t kMaxEmbedNumbers = int64_t{1} << 22;  // of the reply

// Called once, on the engine's thread; must not block. Cancelled is an error, too.
using EmbeddingListener = std::function<void(absl::StatusOr<v1::EmbedReply>)>;

// Checks a request and submits its inputs, only so many at a time that a queue without other
// clients never refuses them. `metrics` may be null. Errors that can be known now come back, naming
// the field; later ones go to the listener.
absl::StatusOr<std::shared_ptr<Generation>> StartEmbedding(v1::EmbedRequest request,
                                                           ModelServer::Target target,
                                                           ServingMetrics* metrics,
                                                           EmbeddingListener listener);

}  // namespace espalier
