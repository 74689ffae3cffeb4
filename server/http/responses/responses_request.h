// Parses requests of POST /v1/responses, with vLLM's extra sampling fields. Pure functions.
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
  std::string instructions;      // apply to this answer only
  std::string previous;          // previous_response_id; empty: none
  nlohmann::ordered_json items;  // "input"; see ReadInput
  bool stream = false;
  bool background = false;
  std::optional<bool> store;
  bool truncate = false;  // drop the oldest turns if not all fit
  bool include_reasoning = true;
  // Request fields that the response repeats, with defaults for absent ones.
  nlohmann::ordered_json echo;
  size_t echo_bytes = 0;  // as text
};

// Rejects unsupported and unknown fields by name, as Parse in openai_request.h does.
std::optional<Error> ParseResponses(const std::string& body, ItemIds* ids,
                                    ResponsesRequest* request);

// Fills in the request's chat: the items `before`, of earlier turns, then its own.
std::optional<Error> FillChat(const nlohmann::ordered_json& before, ResponsesRequest* request);

}  // namespace espalier::openai
