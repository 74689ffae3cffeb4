#include "client/cli/http.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/lib/client.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr size_t kLongestLine = 64 << 10;
constexpr size_t kLargestReply = 16 << 20;

absl::Status FromHttp(int status, const std::string& body, const std::string& address) {
  std::string message = absl::StrCat("HTTP ", status, " from ", address);
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object() &&
      json["error"].contains("message") && json["error"]["message"].is_string()) {
    message = json["error"]["message"].get<std::string>();
  }
  switch (status) {
    case 400:
      return absl::InvalidArgumentError(message);
    case 401:
      return absl::UnauthenticatedError(message);
    case 403:
      return absl::PermissionDeniedError(message);
    case 404:
      return absl::NotFoundError(message);
    case 429:
      return absl::ResourceExhaustedError(message);
    case 503:
      return AnsweredUnavailable(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

absl::Status HttpResponseParser::Feed(absl::string_view bytes) {
  while (!bytes.empty() && state_ != State::kDone) {
    if (state_ == State::kBody || state_ == State::kChunk) {
      const bool bounded = state_ == State::kChunk || !until_close_;
      const size_t take = bounded ? std::min(left_, bytes.size()) : bytes.size();
      body_(bytes.substr(0, take));
      bytes.remove_prefix(take);
      if (!bounded) continue;
      left_ -= take;
      if (left_ == 0) state_ = state_ == State::kChunk ? State::kChunkEnd : State::kDone;
      continue;
    }
    const size_t end = bytes.find('\n');
    const size_t take = end == absl::string_view::npos ? bytes.size() : end + 1;
    absl::StrAppend(&line_, bytes.substr(0, take));
    bytes.remove_prefix(take);
    if (line_.size() > kLongestLine)
      return absl::InvalidArgumentError("a line of the HTTP response is too long");
    if (line_.back() != '\n') break;
    const std::string line = std::move(line_);
    line_.clear();
    absl::string_view text = absl::StripSuffix(line, "\n");
    if (absl::Status s = Line(absl::StripSuffix(text, "\r")); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status HttpResponseParser::Line(absl::string_view line) {
  switch (state_) {
    case State::kStatus:
      if (!absl::StartsWith(line, "HTTP/1.") || line.size() < 12 ||
          !absl::SimpleAtoi(line.substr(9, 3), &status_)) {
        return absl::InvalidArgumentError(
            absl::StrCat("no HTTP/1.1 response: ", Printable(line.substr(0, 60))));
      }
      state_ = State::kHeaders;
      return absl::OkStatus();
    case State::kHeaders:
      if (!line.empty()) return Header(line);
      EndOfHeaders();
      return absl::OkStatus();
    case State::kChunkSize: {
      const absl::string_view hex = line.substr(0, line.find(';'));
      if (hex.empty() || hex.size() > 15)
        return absl::InvalidArgumentError("bad chunk size in the HTTP response");
      left_ = 0;
      for (char c : hex) {
        if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
          return absl::InvalidArgumentError("bad chunk size in the HTTP response");
        }
        left_ = left_ * 16 + static_cast<size_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      }
      state_ = left_ == 0 ? State::kTrailer : State::kChunk;
      return absl::OkStatus();
    }
    case State::kChunkEnd:
      state_ = State::kChunkSize;
      return line.empty() ? absl::OkStatus()
                          : absl::InvalidArgumentError("a chunk of the HTTP response is too long");
    case State::kTrailer:
      if (line.empty()) state_ = State::kDone;
      return absl::OkStatus();
    default:
      return absl::InternalError("HTTP parser out of step");
  }
}

absl::Status HttpResponseParser::Header(absl::string_view line) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos)
    return absl::InvalidArgumentError("bad header in the HTTP response");
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  if (name == "transfer-encoding" && absl::AsciiStrToLower(value) == "chunked") chunked_ = true;
  if (name == "content-length") {
    if (!absl::SimpleAtoi(value, &left_)) return absl::InvalidArgumentError("bad Content-Length");
    until_close_ = false;
  }
  return absl::OkStatus();
}

void HttpResponseParser::EndOfHeaders() {
  if (status_ == 100) {
    state_ = State::kStatus;
  } else if (chunked_) {
    state_ = State::kChunkSize;
  } else {
    state_ = !until_close_ && left_ == 0 ? State::kDone : State::kBody;
  }
}

absl::Status HttpResponseParser::Close() {
  if (state_ == State::kDone || (state_ == State::kBody && until_close_)) return absl::OkStatus();
  return absl::InvalidArgumentError("the connection was closed in the middle of the answer");
}

void SseParser::Feed(absl::string_view bytes) {
  for (char c : bytes) {
    if (c != '\n') {
      line_ += c;
      continue;
    }
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (line_.empty()) {
      if (has_data_) event_(data_);
      data_.clear();
      has_data_ = false;
    } else if (absl::StartsWith(line_, "data:")) {
      absl::string_view value = absl::StripPrefix(absl::string_view(line_).substr(5), " ");
      if (has_data_) data_ += '\n';
      absl::StrAppend(&data_, value);
      has_data_ = true;
    }  // other fields and comments (keep-alive pings) are ignored
    line_.clear();
  }
}

absl::Status PostForEvents(const Gateway& gateway, const std::string& path, const std::string& json,
                           const std::function<bool(const std::string&)>& event) {
  auto connection = GatewayConnection::Open(gateway);
  if (!connection.ok()) return connection.status();
  const std::string request = absl::StrCat(
      "POST ", path, " HTTP/1.1\r\nHost: ", gateway.authority,
      "\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\nConnection: close\r\n",
      gateway.token.empty() ? "" : absl::StrCat("Authorization: Bearer ", gateway.token, "\r\n"),
      "Content-Length: ", json.size(), "\r\n\r\n", json);
  if (absl::Status s = (*connection)->Send(request); !s.ok()) return s;

  bool done = false, wanted = true;
  std::string error_body;
  SseParser events([&](const std::string& data) {
    if (data == "[DONE]") {
      done = true;
    } else if (!done && wanted) {
      wanted = event(data);
    }
  });
  HttpResponseParser* parser = nullptr;
  HttpResponseParser response([&](absl::string_view body) {
    if (parser->status() == 200) {
      events.Feed(body);
    } else if (error_body.size() < (1 << 20)) {
      absl::StrAppend(&error_body, body);
    }
  });
  parser = &response;
  char block[16 << 10];
  while (wanted && !response.complete()) {
    auto n = (*connection)->Receive(block, sizeof block);
    if (!n.ok() && done) break;  // "[DONE]" ends the answer
    if (!n.ok()) return n.status();
    if (*n == 0) {
      if (absl::Status s = response.Close(); !s.ok()) return s;
      break;
    }
    if (absl::Status s = response.Feed(absl::string_view(block, *n)); !s.ok()) return s;
  }
  if (!wanted) return absl::OkStatus();
  if (response.status() != 200) return FromHttp(response.status(), error_body, gateway.authority);
  return done ? absl::OkStatus() : absl::DataLossError("the stream ended before [DONE]");
}

absl::StatusOr<HttpReply> Exchange(const Gateway& gateway, const HttpRequest& request) {
  auto connection = GatewayConnection::Open(gateway);
  if (!connection.ok()) return connection.status();
  std::string text =
      absl::StrCat(request.method, " ", request.path, " HTTP/1.1\r\nHost: ", gateway.authority,
                   "\r\nConnection: close\r\n");
  for (const auto& [name, value] : request.headers) {
    absl::StrAppend(&text, name, ": ", value, "\r\n");
  }
  absl::StrAppend(&text, "Content-Length: ", request.body.size(), "\r\n\r\n", request.body);
  if (absl::Status s = (*connection)->Send(text); !s.ok()) return s;

  HttpReply reply;
  HttpResponseParser parser([&](absl::string_view body) { absl::StrAppend(&reply.body, body); });
  char block[16 << 10];
  while (!parser.complete()) {
    auto n = (*connection)->Receive(block, sizeof block);
    if (!n.ok()) return n.status();
    absl::Status status = *n == 0 ? parser.Close() : parser.Feed(absl::string_view(block, *n));
    if (!status.ok()) return status;
    if (*n == 0) break;
    if (reply.body.size() > kLargestReply) {
      return absl::InvalidArgumentError("the HTTP response is longer than 16 MiB");
    }
  }
  reply.status = parser.status();
  return reply;
}

}  // namespace espalier
