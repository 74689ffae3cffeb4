// Translates between Beast's HTTP messages and ours. Pure functions. Only http_connection.h
// includes this header, because Boost.Beast is slow to compile.
#pragma once

#include <algorithm>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/http/http_server.h"
#include "server/http/percent_encoding.h"
#include "server/http/response_stream.h"

namespace espalier {

// Why a request is rejected before it reaches a handler.
struct HttpRejection {
  int status = 0;  // 0: the client is gone
  std::string message;
};

// How an answer is framed on the wire.
struct ResponseFraming {
  unsigned version = 11;
  bool keep = false;  // keep the connection open
  bool head = false;  // omit the body
  bool chunked = false;
};

template <typename Request>
ResponseFraming FramingOf(const Request& request) {
  return {request.version(), request.keep_alive(),
          request.method() == boost::beast::http::verb::head};
}

template <typename Request>
bool ExpectsContinue(const Request& request) {
  return request.version() == 11 && request.count(boost::beast::http::field::expect) > 0;
}

// Returns path and query of a target in absolute form, which a server must accept (RFC 9112,
// 3.2.2); any other target unchanged.
inline std::string OriginForm(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    const absl::string_view rest = target.substr(scheme.size());
    const size_t end = std::min(rest.find_first_of("/?"), rest.size());
    if (end == 0) break;  // no host: malformed
    return absl::StrCat(end < rest.size() && rest[end] == '/' ? "" : "/", rest.substr(end));
  }
  return std::string(target);
}

// Returns the path of the request's target, not decoded; "" if the target has not arrived.
template <typename Request>
std::string PathOf(const Request& request) {
  const std::string target =
      OriginForm(absl::string_view(request.target().data(), request.target().size()));
  return target.substr(0, target.find('?'));
}

// Checks a request whose header has been read.
template <typename Request>
HttpRejection CheckSupported(const Request& request) {
  using Field = boost::beast::http::field;
  const auto coding = request.find(Field::transfer_encoding);
  if (coding != request.end() && (request.count(Field::transfer_encoding) > 1 ||
                                  !boost::beast::iequals(coding->value(), "chunked"))) {
    // The end of such a body is unknown.
    return {501, "the only transfer coding that is understood is 'chunked'"};
  }
  if (request.target().empty() || request.target().front() == '?') {
    return {400, "the target of the request has no path"};
  }
  if (!IsPercentEncoded(PathOf(request))) {
    return {400,
            "in the path of the request two hexadecimal digits must follow each '%', and name no "
            "control character"};
  }
  if (request.version() == 11 && request.count(Field::host) != 1) {
    return {400, "a request of HTTP/1.1 has one 'Host'"};
  }
  if (ExpectsContinue(request) && !boost::beast::iequals(request[Field::expect], "100-continue")) {
    return {417, "the only expectation that is understood is '100-continue'"};
  }
  return {};
}

inline ResponseStream::Part RejectionPart(const HttpRejection& refusal, const std::string& path,
                                          const HttpServerOptions& options) {
  std::string body =
      options.rejection_body
          ? options.rejection_body(NormalizePath(path), refusal.status, refusal.message)
          : absl::StrCat(R"({"error":{"message":")", refusal.message,
                         R"(","type":"invalid_request_error","param":null,"code":null}})");
  return {ResponseStream::Part::kComplete, refusal.status, "application/json", std::move(body), {}};
}

// Copies all but the body. Must be called before the body is read: afterwards Beast has put trailer
// fields among the headers, where they must not appear (RFC 9110, 6.5.1).
template <typename Request>
HttpRequest ToHttpRequest(const Request& request, const std::string& peer) {
  HttpRequest out;
  out.method = std::string(request.method_string());
  const std::string target =
      OriginForm(absl::string_view(request.target().data(), request.target().size()));
  const size_t question = target.find('?');
  out.path = NormalizePath(PathOf(request));
  if (question != std::string::npos) out.query = target.substr(question + 1);
  for (const auto& field : request) {
    std::string name(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    out.headers[name] = std::string(field.value());
  }
  out.peer = peer;
  return out;
}

// Serializes status line and headers. `now` becomes the Date header.
inline std::string SerializeHeader(const ResponseStream::Part& part, const ResponseFraming& form,
                                   absl::Time now) {
  namespace http = boost::beast::http;
  http::response<http::empty_body> message{static_cast<http::status>(part.status), form.version};
  message.set(http::field::server, "espalier");
  message.set(http::field::date,
              absl::FormatTime("%a, %d %b %E4Y %H:%M:%S GMT", now, absl::UTCTimeZone()));
  message.set(http::field::content_type, part.content_type);
  for (const auto& [name, value] : part.headers) message.set(name, value);
  message.keep_alive(form.keep);
  if (part.kind == ResponseStream::Part::kComplete) {
    message.content_length(part.data.size());
  } else if (form.chunked) {
    message.chunked(true);
  }
  http::response_serializer<http::empty_body> serializer{message};
  serializer.split(true);
  std::string header;
  boost::system::error_code error;
  serializer.next(error, [&](boost::system::error_code&, const auto& buffers) {
    header = boost::beast::buffers_to_string(buffers);
  });
  return header;
}

}  // namespace espalier
