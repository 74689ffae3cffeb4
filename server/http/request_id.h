// The id by which client and server speak of one request.
#pragma once

#include <memory>
#include <string>

#include "server/http/http_server.h"

namespace espalier {

// `responder`, whose answer names the id in the headers X-Request-Id, where OpenAI's clients look
// for it, and Request-Id, where Anthropic's do. Where such responders stand one before another, the
// id of the one that answers first counts.
std::shared_ptr<HttpResponder> WithRequestId(std::shared_ptr<HttpResponder> responder,
                                             std::string id);

}  // namespace espalier
