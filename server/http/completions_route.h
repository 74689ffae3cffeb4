// POST /v1/completions and /v1/chat/completions: from the body to the last byte of the answer.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "server/http/serialization_thread.h"
#include "server/http/http_server.h"
#include "server/http/openai_request.h"
#include "server/inference/models/model_server.h"

namespace espalier {

struct RouteContext {
  ModelServer* models = nullptr;
  ServingMetrics* metrics = nullptr;  // optional
  const Clock* clock = nullptr;
  std::string id;                       // of the request, as its answer's header has it
  std::shared_ptr<SerializationThread> serialization_thread;  // writes large answers; null: the engine's thread does
};

// Returns at once; the answer comes from the engine's thread. A client that goes away ends it.
void Generate(openai::Kind kind, const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder);

// The model that a request names, with the adapter noted in the request.
absl::StatusOr<std::shared_ptr<LoadedModel>> ModelOf(const ModelServer& models,
                                                     v1::GenerateRequest* request);

// Where neither the request nor the model's authors say a temperature, these APIs have 1.
void SetDefaultTemperature(const LoadedModel& model, v1::GenerateRequest* request);

// How an API writes an error.
using ErrorFormatter = std::string (*)(const openai::Error& error);

// An error as a whole answer, with the headers that belong to its status.
void SendError(HttpResponder& responder, const openai::Error& error,
               HttpResponder::Headers headers = {}, ErrorFormatter form = &openai::ToJson);
void SendError(HttpResponder& responder, const absl::Status& status,
               ErrorFormatter form = &openai::ToJson);

}  // namespace espalier
