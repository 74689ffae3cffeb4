// A small HTTP/1.1 server: requests in, responses or streams out. Knows nothing of models or jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace espalier {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query, not decoded
  std::string query;
  std::map<std::string, std::string> headers;  // names in lower case; the last of equal names
  std::string body;
  std::string peer;  // "127.0.0.1:53412"
};

// The answer to one request, given from any thread, at once or later. Thread-safe. If the last
// reference goes away before an answer was given, the client gets a 500; one that goes away before
// a stream has ended closes the connection, without the end of the stream.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;

  using Headers = std::vector<std::pair<std::string, std::string>>;

  // A whole answer. Only the first of Send and StartStream counts.
  virtual void Send(int status, std::string content_type, std::string body,
                    Headers headers = {}) = 0;

  // An answer in parts (chunked): StartStream, any number of Write, then End.
  virtual void StartStream(int status, std::string content_type, Headers headers = {}) = 0;
  virtual void Write(std::string data) = 0;
  virtual void End() = 0;

  // `closed` runs once, on a thread of the server, if the client goes away before the answer is
  // complete (one that closes its half of the connection has gone); at once if it has gone already.
  // It must not block.
  virtual void OnClose(std::function<void()> closed) = 0;
};

// Runs on a thread of the server that serves no connection, unless the request is a quick one. What
// it throws is a 500.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;

// Looks at a request without its body, at once, on a thread that serves connections. True: its body
// is read, and it is handled; false: it has been answered.
using HttpAdmission =
    std::function<bool(const HttpRequest& header, const std::shared_ptr<HttpResponder>&)>;

// PEM; with a certificate the server speaks TLS alone, and with a CA callers must show a
// certificate that it signed.
struct HttpCertificates {
  std::string certificate, key, client_ca;
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;        // 0: any
  int threads = 2;          // that serve connections
  int handler_threads = 0;  // that run the handler; 0: as many as there are cores, but at least 4
  size_t max_waiting_requests = 1024;    // for such a thread
  size_t max_waiting_bytes = 512 << 20;  // of their bodies; at least one of the largest
  // Before a body is read, if there is one; the connection is closed behind a refusal. Null: all
  // are read.
  HttpAdmission admit;
  size_t max_reading_bytes =
      512 << 20;  // of bodies not read whole yet; at least one of the largest
  // The requests that are handled at once, whatever the other handlers do, on a thread that serves
  // connections: they must not wait for anything. Null: there are none.
  std::function<bool(const HttpRequest&)> quick;
  // Answers, likewise at once, when requests, their bytes or those of answers are too many. Null:
  // with a 503 in the form of OpenAI's API.
  HttpHandler overloaded;
  // Is told of what the server itself refused, before there was a request to be handled: with 400,
  // 408, 413, 417, 431 or 501, so long after it began. `method` may be anything, or empty.
  std::function<void(const std::string& method, int status, absl::Duration after)> refused;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
  size_t max_connections = 4096;
  size_t max_unsent_bytes = 8 << 20;  // of one stream whose client does not read; then it is closed
  size_t max_all_unsent_bytes = 1 << 30;            // of all answers; beyond it no others are begun
  absl::Duration read_timeout = absl::Seconds(30);  // for one whole request once it has begun
  absl::Duration idle_timeout = absl::Seconds(120);  // between requests
  absl::Duration write_timeout = absl::Seconds(30);  // for each 256 KiB of an answer
  HttpCertificates certificates;
};

class HttpServer {
 public:
  // Unavailable, naming the address, if it cannot be listened on; InvalidArgument if certificate
  // and key are not understood.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                           HttpHandler handler);
  virtual ~HttpServer() = default;  // stops

  virtual uint16_t port() const = 0;
  // For connections to come; those that there are stay. From any thread. InvalidArgument, and the
  // old ones stay, if they are not understood or there were none at the start.
  virtual absl::Status SetCertificates(const HttpCertificates& certificates) = 0;
  // Those that have been read whole, and whose answers are not complete or not all written yet.
  virtual int OpenRequests() const = 0;
  // Closes every connection and joins the threads. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace espalier
