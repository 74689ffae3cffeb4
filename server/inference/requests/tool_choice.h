// What a chat's tools and its choice among them mean for the answer.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "serving/output_parsers/output_parser.h"
#include "serving/grammar/structured_output.h"

namespace espalier {

// Empty if the model must not call any. InvalidArgument naming the tool.
absl::StatusOr<std::vector<Tool>> ToolsOf(const v1::ChatPrompt& chat);

// kNone without tools.
ToolChoice ToolChoiceOf(const v1::ChatPrompt& chat);

// What the answer must be, `content` being what is demanded of its text. If a call must be made: of
// a named tool its arguments alone, otherwise a list of {"name", "arguments"}; there is no text. If
// the model may choose: calls, those of strict tools by their schemas, or text of that form; any
// text beside the calls if nothing is demanded of it. nullopt: all may be as it likes.
// InvalidArgument naming what cannot be.
absl::StatusOr<std::optional<StructuredOutput>> AnswerConstraint(
    const std::vector<Tool>& tools, const ToolCallParser& tool_parser, const v1::ChatPrompt& chat,
    const std::optional<StructuredOutput>& content);

}  // namespace espalier
