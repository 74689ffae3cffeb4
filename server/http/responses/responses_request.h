// Request bodies of POST /v1/responses, with vLLM's further fields for sampling. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_error.h"
#include "server/http/responses/input_items.h"

namespace espalier::openai {

struct ResponsesRequest {
  v1::GenerateRequest generate;  // all but the turns of the chat
  std::string instructions;         // of this answer only, whatever came before it
  std::string previous;             // the response that this one goes on from; empty: none
  nlohmann::ordered_json items;     // "input"; see ReadInput
  bool stream = false;
  bool background = false;
  std::optional<bool> store;
  bool truncate = false;  // the oldest turns go if all do not fit
  bool include_reasoning = true;
  // What a response repeats of its request, in the API's form, absent fields with their defaults.
  nlohmann::ordered_json echo;
  size_t echo_bytes = 0;  // as text
};

// As Parse in openai_request.h does: what is known and not supported is refused by name, what is
// not known is refused.
std::optional<Error> ParseResponses(const std::string& body, ItemIds* ids,
                                    ResponsesRequest* request);

// The chat of the request behind `before`, the items of earlier turns.
std::optional<Error> FillChat(const nlohmann::ordered_json& before, ResponsesRequest* request);

}  // namespace espalier::openai
