// Request bodies of Anthropic's Messages API, with our further fields for sampling, as
// GenerateRequests. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_error.h"

namespace espalier::anthropic {

struct MessagesRequest {
  v1::GenerateRequest generate;
  bool stream = false;
  bool include_thinking = true;
  bool no_thinking = false;  // thoughts are not wanted, where the model's template can do without
};

enum class Purpose { kAnswer, kCount };  // of counting, how to sample is no question

// Every field is checked; what is known and not supported is refused by name, what is not known is
// refused. Marks of what should be cached are accepted: every prompt is. A last message of the
// assistant's is gone on with.
std::optional<openai::Error> ParseMessages(Purpose purpose, const std::string& body,
                                           MessagesRequest* request);

}  // namespace espalier::anthropic
