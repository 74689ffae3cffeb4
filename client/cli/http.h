// Just enough HTTP/1.1 to stream from the gateway: one request per connection, chunked or plain
// bodies, server-sent events.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cli/gateway.h"

namespace espalier {

// Takes an HTTP response in pieces. Feed returns an error for what is no HTTP/1.1 response.
class HttpResponseParser {
 public:
  // `body` gets the body as it comes, without the framing of chunks.
  explicit HttpResponseParser(std::function<void(absl::string_view)> body)
      : body_(std::move(body)) {}

  absl::Status Feed(absl::string_view bytes);
  int status() const { return status_; }  // 0 until the first line is there
  bool complete() const { return state_ == State::kDone; }
  // The connection was closed: InvalidArgument unless the response was complete or ends with the
  // connection.
  absl::Status Close();

 private:
  enum class State { kStatus, kHeaders, kBody, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone };
  absl::Status Line(absl::string_view line);
  absl::Status Header(absl::string_view line);
  void EndOfHeaders();

  std::function<void(absl::string_view)> body_;
  State state_ = State::kStatus;
  int status_ = 0;
  bool chunked_ = false;
  bool until_close_ = true;
  size_t left_ = 0;  // of the body or of the chunk
  std::string line_;
};

// Splits a stream of server-sent events; `event` gets the data of each.
class SseParser {
 public:
  explicit SseParser(std::function<void(const std::string&)> event) : event_(std::move(event)) {}
  void Feed(absl::string_view bytes);

 private:
  std::function<void(const std::string&)> event_;
  std::string line_, data_;
  bool has_data_ = false;
};

// Posts JSON to the gateway's `path` and hands on the data of each event but the final "[DONE]",
// until `event` returns false, which is no error. Blocks. Unavailable as GatewayConnection::Open
// has it; for an answer other than 200, the error's own message with the code that fits, which
// IsUnreachable never is; DataLoss if the stream ends before "[DONE]".
absl::Status PostForEvents(const Gateway& gateway, const std::string& path, const std::string& json,
                           const std::function<bool(const std::string&)>& event);

}  // namespace espalier
