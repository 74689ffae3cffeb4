#include "server/http/openai_error.h"

#include <nlohmann/json.hpp>

#include "server/http/json_reader.h"
#include "server/inference/field_error.h"

namespace espalier::openai {

std::string ToJson(const Error& error) {
  using json = nlohmann::ordered_json;
  return Dump({{"error",
                {{"message", error.message},
                 {"type", error.type},
                 {"param", error.param.empty() ? json() : json(error.param)},
                 {"code", error.code.empty() ? json() : json(error.code)}}}});
}

Error FromStatus(const absl::Status& status) {
  Error error{.message = std::string(status.message()), .param = FieldOf(status)};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      break;
    case absl::StatusCode::kUnauthenticated:
      error.http_status = 401;
      error.type = "authentication_error";
      error.code = "invalid_api_key";
      break;
    case absl::StatusCode::kPermissionDenied:
      error.http_status = 403;
      error.type = "permission_error";
      break;
    case absl::StatusCode::kNotFound:
      error.http_status = 404;
      error.code = "model_not_found";
      error.param = "model";
      break;
    case absl::StatusCode::kResourceExhausted:
      error.http_status = 429;
      error.type = "rate_limit_error";
      error.code = "queue_full";
      break;
    case absl::StatusCode::kUnavailable:
      error.http_status = 503;
      error.type = "server_error";
      break;
    case absl::StatusCode::kDeadlineExceeded:
      error.http_status = 504;
      error.type = "timeout_error";
      error.code = "deadline_exceeded";
      break;
    case absl::StatusCode::kUnimplemented:
      error.http_status = 501;
      error.code = "not_supported";
      break;
    default:
      error.http_status = 500;
      error.type = "server_error";
  }
  return error;
}

}  // namespace espalier::openai
