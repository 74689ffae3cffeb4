// A minimal HTTP/1.1 client, above all for streaming from the gateway: one request per connection,
// chunked or plain bodies, server-sent events.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/gateway.h"

namespace espalier {

// Incremental parser of an HTTP response. Feed returns an error if it is not HTTP/1.1.
class HttpResponseParser {
 public:
  // Calls `body` with pieces of the decoded body.
  explicit HttpResponseParser(std::function<void(absl::string_view)> body)
      : body_(std::move(body)) {}

  absl::Status Feed(absl::string_view bytes);
  int status() const { return status_; }  // 0 until the status line has arrived
  bool complete() const { return state_ == State::kDone; }
  // Call when the connection has closed. Returns InvalidArgument unless the response is complete or
  // is delimited by the close.
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
  size_t left_ = 0;  // bytes left of the body or chunk
  std::string line_;
};

// Parser of server-sent events; calls `event` with the data of each.
class SseParser {
 public:
  explicit SseParser(std::function<void(const std::string&)> event) : event_(std::move(event)) {}
  void Feed(absl::string_view bytes);

 private:
  std::function<void(const std::string&)> event_;
  std::string line_, data_;
  bool has_data_ = false;
};

// Posts JSON to the gateway's `path` and passes the data of each event except the final "[DONE]" to
// `event`, until it returns false, which is not an error. Blocks. Returns Unavailable as
// GatewayConnection::Open does; for an HTTP status other than 200, the error's message with the
// matching code, for which IsUnreachable is always false; DataLoss if the stream ends before
// "[DONE]".
absl::Status PostForEvents(const Gateway& gateway, const std::string& path, const std::string& json,
                           const std::function<bool(const std::string&)>& event);

struct HttpRequest {
  std::string method = "POST";
  std::string path;  // with the query
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};
struct HttpReply {
  int status = 0;
  std::string body;
};
// Sends one request and returns the answer, of any status. Returns Unavailable as
// GatewayConnection::Open does, and InvalidArgument for an answer that is no HTTP or exceeds 16
// MiB.
absl::StatusOr<HttpReply> Exchange(const Gateway& gateway, const HttpRequest& request);

}  // namespace espalier
