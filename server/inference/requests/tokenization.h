// Tokenizes texts and chats, and detokenizes, for gRPC and HTTP.
#pragma once

#include "absl/status/statusor.h"
#include "base/net/caller.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Limits per request.
inline constexpr size_t kMaxTokenizeBytes = 8 << 20;  // same as an HTTP body
inline constexpr int kMaxDetokenizeTokens = 4 << 20;

// Returns the tokens of a generation request with this prompt. Returns the errors of
// ModelServer::ResolveOrOnly and of the chat template, or InvalidArgument naming the field.
absl::StatusOr<v1::TokenizeReply> Tokenize(const v1::TokenizeRequest& request, const Caller& caller,
                                           const ModelServer& models);

// Returns the text of tokens; special tokens have none. Same errors.
absl::StatusOr<v1::DetokenizeReply> Detokenize(const v1::DetokenizeRequest& request,
                                               const Caller& caller, const ModelServer& models);

}  // namespace espalier
