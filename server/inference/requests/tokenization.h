// From texts and chats to tokens and back, for gRPC and HTTP alike.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Limits of one request.
inline constexpr size_t kMaxTokenizeBytes = 8 << 20;  // as of an HTTP body
inline constexpr int kMaxDetokenizeTokens = 4 << 20;

// The tokens that a request for an answer with this prompt would have. Errors of ModelServer::
// ResolveOrOnly, of the chat, or InvalidArgument naming the field.
absl::StatusOr<v1::TokenizeReply> Tokenize(const v1::TokenizeRequest& request,
                                              const ModelServer& models);

// Likewise. Special tokens have no text.
absl::StatusOr<v1::DetokenizeReply> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ModelServer& models);

}  // namespace espalier
