// A response that is still being generated, as seen by clients other than the one that created it
// (the Responses API's background mode).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/http/http_server.h"

namespace espalier {

// Thread-safe.
class InProgressResponse {
 public:
  virtual ~InProgressResponse() = default;
  virtual nlohmann::ordered_json Snapshot() = 0;
  virtual bool streams() const = 0;
  // Streams its events after number `after`, including future ones. REQUIRES: a background stream.
  virtual void Watch(std::shared_ptr<HttpResponder> responder, int64_t after) = 0;
  // No effect after its end.
  virtual void Cancel() = 0;
};

}  // namespace espalier
