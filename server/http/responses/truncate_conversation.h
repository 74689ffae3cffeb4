// Truncation of conversations for the Responses API's "truncation": "auto".
#pragma once

#include "absl/status/status.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Drops the oldest turns, up to the start of a user turn, until prompt and max_tokens (1 if absent)
// fit the model's context. Keeps system and developer turns and everything from the last user turn
// on, even if that is too long. Returns errors of the chat template.
absl::Status TruncateConversation(const LoadedModel& model, v1::GenerateRequest* request);

}  // namespace espalier
