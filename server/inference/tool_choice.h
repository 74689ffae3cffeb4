// What a chat's tools and its choice among them mean for the answer.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "serving/answer/answer_reader.h"

namespace espalier {

// Empty if the model must not call any. InvalidArgument naming the tool.
absl::StatusOr<std::vector<Tool>> ToolsOf(const proto::ChatPrompt& chat);

// kNone without tools.
ToolChoice ChoiceOf(const proto::ChatPrompt& chat);

// A call that must be made becomes the request's structured output: of a named tool its arguments
// alone, otherwise a list of {"name", "arguments"}. InvalidArgument naming what cannot be.
absl::Status DemandCall(const std::vector<Tool>& tools, proto::GenerateRequest* request);

}  // namespace espalier
