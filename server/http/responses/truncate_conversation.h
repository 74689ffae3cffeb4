// Truncation of conversations: "truncation": "auto".
#pragma once

#include "absl/status/status.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Drops the oldest turns of the chat, up to one of the user's, until prompt and max_tokens (1 if
// there is none) fit the model's context. System and developer turns stay, and so does all from the
// user's last turn on: what is too long then stays too long. Errors are those of the template.
absl::Status TruncateConversation(const LoadedModel& model, v1::GenerateRequest* request);

}  // namespace espalier
