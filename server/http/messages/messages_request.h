// Parses requests of Anthropic's Messages API, with our extra sampling fields, into
// GenerateRequests. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_error.h"

namespace espalier::anthropic {

struct MessagesRequest {
  v1::GenerateRequest generate;
  bool stream = false;
  bool include_thinking = true;
  bool no_thinking = false;  // disable thinking if the model's template can
};

enum class Purpose { kAnswer, kCount };  // kCount ignores sampling fields

// Checks every field. Rejects unsupported and unknown fields by name. Ignores cache_control: every
// prompt is cached. A final assistant message is continued.
std::optional<openai::Error> ParseMessages(Purpose purpose, const std::string& body,
                                           MessagesRequest* request);

}  // namespace espalier::anthropic
