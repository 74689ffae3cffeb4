// A small HTTP/1.1 server with whole and streamed responses. Knows nothing of models or jobs.
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
  std::string path;    // without the query; percent-decoded except %2F and %25, see NormalizePath
  std::string query;
  std::map<std::string, std::string> headers;  // names in lower case; the last of duplicates
  std::string body;
  std::string peer;  // "127.0.0.1:53412"
};

// Answers one request, from any thread, at once or later. Thread-safe. If the last reference is
// dropped before an answer, the client gets a 500; if it is dropped within a stream, the connection
// is closed without the end of the stream.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;

  using Headers = std::vector<std::pair<std::string, std::string>>;

  // Sends a whole answer. Only the first call of Send or StartStream counts.
  virtual void Send(int status, std::string content_type, std::string body,
                    Headers headers = {}) = 0;

  // Sends an answer in chunks: StartStream, any number of Write, then End.
  virtual void StartStream(int status, std::string content_type, Headers headers = {}) = 0;
  virtual void Write(std::string data) = 0;
  virtual void End() = 0;

  // Runs `closed` once, on a thread of the server, if the client disconnects before the answer is
  // complete; at once if it already has. A client that has only closed its side (TCP's half-close)
  // is answered; it is told from one that is gone by probes, within a second or so. With TLS it
  // counts as disconnected. `closed` must not block.
  virtual void OnClose(std::function<void()> closed) = 0;
};

// Runs on a handler thread, or on a connection thread if the request is `quick`. An exception
// becomes a 500.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;

// Checks a request before its body is read. Runs on a connection thread; must not block. Returns
// true to have the body read and the request handled; false if it has answered the request.
using HttpAdmission =
    std::function<bool(const HttpRequest& header, const std::shared_ptr<HttpResponder>&)>;

// PEM texts. With a certificate, the server speaks TLS only. With a CA, clients must present a
// certificate signed by it.
struct HttpCertificates {
  std::string certificate, key, client_ca;
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;                     // 0: any
  int threads = 2;                       // that serve connections; never block
  int handler_threads = 0;               // 0: the number of cores, but at least 4
  size_t max_waiting_requests = 1024;    // queued for a handler thread
  size_t max_waiting_bytes = 512 << 20;  // of queued bodies; at least max_body_bytes
  // Called before a body is read. After a rejection the connection is closed. Null: all are
  // admitted.
  HttpAdmission admit;
  size_t max_reading_bytes =
      512 << 20;  // of bodies that are still being read; at least max_body_bytes
  // Selects requests that are handled at once on a connection thread, whatever the other handlers
  // do. Their handler must not block. Null: none.
  std::function<bool(const HttpRequest&)> quick;
  // Answers in place of the handler, on a connection thread, when a limit on requests or bytes is
  // exceeded. Null: 503 with an OpenAI error.
  HttpHandler overloaded;
  // Returns the JSON body for a request that the server itself rejects, for example with 413.
  // `path` is empty if it is not known. Null: OpenAI's form.
  std::function<std::string(const std::string& path, int status, const std::string& message)>
      rejection_body;
  // Called for requests that the server itself rejects with 400, 408, 413, 417, 431 or 501; `after`
  // is the time since their first byte. `method` may be empty or arbitrary.
  std::function<void(const std::string& method, int status, absl::Duration after)> on_rejected;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
  size_t max_connections = 4096;
  size_t max_unsent_bytes = 8 << 20;  // of one stream; a client that does not read is disconnected
  // of all answers; beyond it new requests get `overloaded`
  size_t max_all_unsent_bytes = 1 << 30;
  absl::Duration read_timeout = absl::Seconds(30);   // for one whole request, from its first byte
  absl::Duration idle_timeout = absl::Seconds(120);  // between requests
  absl::Duration write_timeout = absl::Seconds(30);  // for each 256 KiB of an answer
  HttpCertificates certificates;
};

class HttpServer {
 public:
  // Returns Unavailable with the address if it cannot listen; InvalidArgument for a bad certificate
  // or key.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                           HttpHandler handler);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  // Replaces the certificates for new connections. Thread-safe. Returns InvalidArgument and keeps
  // the old ones if the new ones are invalid or the server was started without TLS.
  virtual absl::Status SetCertificates(const HttpCertificates& certificates) = 0;
  // Number of requests that have been read and whose answers are not fully written yet.
  virtual int OpenRequests() const = 0;
  // Closes all connections and joins the threads. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace espalier
