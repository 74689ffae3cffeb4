#include "server/http/request_id.h"

#include <utility>

#include "server/http/added_headers.h"

namespace espalier {

std::shared_ptr<HttpResponder> WithRequestId(std::shared_ptr<HttpResponder> responder,
                                             std::string id) {
  return WithHeaders(std::move(responder), {{"X-Request-Id", id}, {"Request-Id", id}});
}

}  // namespace espalier
