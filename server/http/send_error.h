// Sends errors as whole HTTP answers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/http/http_server.h"
#include "server/http/openai_error.h"

namespace espalier {

// Writes an error as an API's JSON body.
using ErrorFormatter = std::string (*)(const openai::Error& error);

// Returns {"error": "message"}, as the Open Inference Protocol and Ollama's API have it.
std::string MessageAlone(const openai::Error& error);

// Sends an error with the headers that its status calls for.
void SendError(HttpResponder& responder, const openai::Error& error,
               HttpResponder::Headers headers = {}, ErrorFormatter form = &openai::ToJson);
void SendError(HttpResponder& responder, const absl::Status& status,
               ErrorFormatter form = &openai::ToJson);

}  // namespace espalier
