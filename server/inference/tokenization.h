// From texts and chats to tokens and back, for gRPC and HTTP alike.
#pragma once

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "server/inference/model_server.h"

namespace espalier {

// Limits of one request.
inline constexpr size_t kMaxTokenizeBytes = 8 << 20;  // as of an HTTP body
inline constexpr int kMaxDetokenizeTokens = 4 << 20;

// The tokens that a request for an answer with this prompt would have. Errors of ModelServer::
// ResolveOrOnly, of the chat, or InvalidArgument naming the field.
absl::StatusOr<proto::TokenizeReply> Tokenize(const proto::TokenizeRequest& request,
                                              const ModelServer& models);

// Likewise. Special tokens have no text.
absl::StatusOr<proto::DetokenizeReply> Detokenize(const proto::DetokenizeRequest& request,
                                                  const ModelServer& models);

}  // namespace espalier
