// Turns a chat's tools and tool_choice into constraints on the output.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "serving/grammar/structured_output.h"
#include "serving/output_parsers/output_parser.h"

namespace espalier {

// Returns the tools; empty if the model must not call any. Returns InvalidArgument naming the tool.
absl::StatusOr<std::vector<Tool>> ToolsOf(const v1::ChatPrompt& chat);

// Returns kNone if there are no tools.
ToolChoice ToolChoiceOf(const v1::ChatPrompt& chat);

// Returns the grammar that the answer must follow; nullopt: unconstrained. `content` constrains the
// answer's text. If a call is required: for a named tool its arguments alone, otherwise a list of
// {"name", "arguments"}, without text. If the model may choose: calls, with the arguments of strict
// tools following their schemas, or text that follows `content`; without `content`, text may stand
// beside the calls. Returns InvalidArgument naming an unsupported combination.
absl::StatusOr<std::optional<StructuredOutput>> AnswerConstraint(
    const std::vector<Tool>& tools, const ToolCallParser& tool_parser, const v1::ChatPrompt& chat,
    const std::optional<StructuredOutput>& content);

}  // namespace espalier
