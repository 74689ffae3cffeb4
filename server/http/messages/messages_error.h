// Errors as clients of Anthropic's Messages API expect them.
#pragma once

#include <string>

#include "server/http/openai_error.h"

namespace espalier::anthropic {

// {"type": "error", "error": {...}}, the body of an answer and the data of a stream's event.
std::string ErrorJson(const openai::Error& error);

}  // namespace espalier::anthropic
