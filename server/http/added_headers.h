// Response headers that a layer adds to the answers of the layers below.
#pragma once

#include <memory>

#include "server/http/http_server.h"

namespace espalier {

// Returns a responder that adds the headers which an answer does not have.
std::shared_ptr<HttpResponder> WithHeaders(std::shared_ptr<HttpResponder> responder,
                                           HttpResponder::Headers headers);

}  // namespace espalier
