// Converts a GenerateRequest to the engine's RequestOptions.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"
#include "server/inference/requests/chat_prompt.h"
#include "serving/request/request.h"

namespace espalier {

// Returns FailedPrecondition if the request demands speculation and no drafter can draft after such
// a prompt.
absl::Status CheckSpeculation(const v1::GenerateRequest& request, const LoadedModel& model,
                              size_t prompt_tokens);

// Returns all options but the seed. `tools`: tools that the model may call. Errors name the field.
absl::StatusOr<RequestOptions> ToRequestOptions(const v1::GenerateRequest& request,
                                                const LoadedModel& model, const Prompt& prompt,
                                                const std::vector<Tool>& tools);

}  // namespace espalier
