// Test helper: a handler that writes a stream faster than its client reads it.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/http/http_server.h"

namespace espalier {

// Handles one request. Outlives the server.
class FloodingHandler {
 public:
  ~FloodingHandler() {
    if (writer_.joinable()) writer_.join();
  }

  // Writes until the client disconnects, at most for `most`.
  HttpHandler Handler(absl::Duration most) {
    return [this, most](HttpRequest, std::shared_ptr<HttpResponder> responder) {
      responder->OnClose([this] { closed_.Notify(); });
      writer_ = std::thread([this, most, responder] {
        responder->StartStream(200, "text/event-stream");
        const absl::Time end = absl::Now() + most;
        while (!closed_.HasBeenNotified() && absl::Now() < end) {
          responder->Write(std::string(64 << 10, 'x'));
          absl::SleepFor(absl::Milliseconds(1));
        }
      });
    };
  }
  bool WaitUntilClosed(absl::Duration most) { return closed_.WaitForNotificationWithTimeout(most); }

 private:
  absl::Notification closed_;
  std::thread writer_;
};

}  // namespace espalier
