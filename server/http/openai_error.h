// Errors of the OpenAI API.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier::openai {

// The object under "error", and the HTTP status.
struct Error {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // empty: null
  std::string code;   // empty: null
};

std::string ToJson(const Error& error);
// Maps a status to an API error.
Error FromStatus(const absl::Status& status);

}  // namespace espalier::openai
