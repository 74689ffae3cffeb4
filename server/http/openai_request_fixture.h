// Reads requests that are refused, for tests.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "server/http/openai_request.h"

namespace espalier::openai {

inline Error ErrorOf(Kind kind, const std::string& body) {
  Request request;
  const auto error = Parse(kind, body, &request);
  EXPECT_TRUE(error.has_value()) << body;
  return error.value_or(Error{});
}

}  // namespace espalier::openai
