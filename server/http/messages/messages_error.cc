#include "server/http/messages/messages_error.h"

#include <nlohmann/json.hpp>

#include "server/http/json_reader.h"

namespace espalier::anthropic {
namespace {

const char* TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string ErrorJson(const openai::Error& error) {
  return openai::Dump(
      {{"type", "error"},
       {"error", {{"type", TypeOf(error.http_status)}, {"message", error.message}}}});
}

}  // namespace espalier::anthropic
