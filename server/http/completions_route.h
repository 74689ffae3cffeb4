// Handles POST /v1/completions and /v1/chat/completions, and holds what all generating routes
// share.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "server/http/http_server.h"
#include "server/http/openai_request.h"
#include "server/http/serialization_thread.h"
#include "server/inference/models/model_server.h"

namespace espalier {

struct RouteContext {
  ModelServer* models = nullptr;
  ServingMetrics* metrics = nullptr;  // optional
  const Clock* clock = nullptr;
  std::string id;  // request ID, as in the answer's header
  // null: answers are serialized on the engine's thread
  std::shared_ptr<SerializationThread> serialization_thread;
};

// Returns at once; the engine's thread sends the answer. A disconnect of the client cancels it.
void Generate(openai::Kind kind, const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder);

// Returns the model that `request` names and records the adapter in the request, if the name is an
// adapter's.
absl::StatusOr<std::shared_ptr<LoadedModel>> ModelOf(const ModelServer& models,
                                                     v1::GenerateRequest* request);

// Sets temperature 1, as these APIs do, if neither the request nor the model's
// generation_config.json has one.
void SetDefaultTemperature(const LoadedModel& model, v1::GenerateRequest* request);

// Writes an error as an API's JSON body.
using ErrorFormatter = std::string (*)(const openai::Error& error);

// Sends an error as a whole answer, with the headers that its status calls for.
void SendError(HttpResponder& responder, const openai::Error& error,
               HttpResponder::Headers headers = {}, ErrorFormatter form = &openai::ToJson);
void SendError(HttpResponder& responder, const absl::Status& status,
               ErrorFormatter form = &openai::ToJson);

}  // namespace espalier
