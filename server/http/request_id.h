// Request IDs in response headers.
#pragma once

#include <memory>
#include <string>

#include "server/http/http_server.h"

namespace espalier {

// Returns a responder that adds the ID as X-Request-Id (where OpenAI's clients look for it) and
// Request-Id (Anthropic's). In a chain of such responders the innermost call's ID counts: the one
// that answers first.
std::shared_ptr<HttpResponder> WithRequestId(std::shared_ptr<HttpResponder> responder,
                                             std::string id);

}  // namespace espalier
