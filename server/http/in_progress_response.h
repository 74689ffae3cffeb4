// An answer that has not ended, as those see it who did not ask for it.
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
  // Its events after the one with this number, those to come included. REQUIRES: it streams in the
  // background.
  virtual void Watch(std::shared_ptr<HttpResponder> responder, int64_t after) = 0;
  // Nothing happens if it has ended by now.
  virtual void Cancel() = 0;
};

}  // namespace espalier
