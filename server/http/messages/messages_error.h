// Errors of Anthropic's Messages API.
#pragma once

#include <string>

#include "server/http/openai_error.h"

namespace espalier::anthropic {

// Returns {"type": "error", "error": {...}}, a response body or the data of a stream event.
std::string ErrorJson(const openai::Error& error);

}  // namespace espalier::anthropic
