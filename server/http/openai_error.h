// Errors as clients of the OpenAI API expect them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier::openai {

// What is under "error", and the status line.
struct Error {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // empty: null
  std::string code;   // empty: null
};

std::string ToJson(const Error& error);
// For a status of ours.
Error FromStatus(const absl::Status& status);

}  // namespace espalier::openai
