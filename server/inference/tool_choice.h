// What a chat's tools and its choice among them mean for the answer.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "serving/answer/answer_reader.h"
#include "serving/grammar/structured_output.h"

namespace espalier {

// Empty if the model must not call any. InvalidArgument naming the tool.
absl::StatusOr<std::vector<Tool>> ToolsOf(const proto::ChatPrompt& chat);

// kNone without tools.
ToolChoice ChoiceOf(const proto::ChatPrompt& chat);

// What the answer must be if a call must be made: of a named tool its arguments alone, otherwise a
// list of {"name", "arguments"}. If tools are strict and the model may choose: any text, calls of
// them by their schemas. nullopt: nothing is demanded. InvalidArgument naming what cannot be.
absl::StatusOr<std::optional<StructuredOutput>> FormOfCalls(const std::vector<Tool>& tools,
                                                            const ToolStyle& style,
                                                            const proto::GenerateRequest& request);

}  // namespace espalier
