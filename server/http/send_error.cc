#include "server/http/send_error.h"

#include <algorithm>
#include <utility>

#include "server/http/json_reader.h"
#include "server/inference/models/async_engine.h"

namespace espalier {

std::string MessageAlone(const openai::Error& error) {
  return openai::Dump({{"error", error.message}});
}

void SendError(HttpResponder& responder, const openai::Error& error, HttpResponder::Headers headers,
               ErrorFormatter form) {
  const bool has_delay = std::any_of(headers.begin(), headers.end(), [](const auto& header) {
    return header.first == "Retry-After";
  });
  if ((error.http_status == 429 || error.http_status == 503) && !has_delay) {
    headers.emplace_back("Retry-After", "1");
  }
  if (error.http_status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  responder.Send(error.http_status, "application/json", form(error), std::move(headers));
}

void SendError(HttpResponder& responder, const absl::Status& status, ErrorFormatter form) {
  HttpResponder::Headers headers;
  if (const auto delay = status.GetPayload(kRetryAfterPayload)) {
    headers.emplace_back("Retry-After", std::string(*delay));
  }
  SendError(responder, openai::FromStatus(status), std::move(headers), form);
}

}  // namespace espalier
