// POST /v1/completions and /v1/chat/completions: from the body to the last byte of the answer.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "server/http/answer_thread.h"
#include "server/http/http_server.h"
#include "server/http/openai_request.h"
#include "server/inference/models/model_server.h"

namespace espalier {

struct GenerateContext {
  ModelServer* models = nullptr;
  ServingMetrics* metrics = nullptr;  // optional
  const Clock* clock = nullptr;
  std::string id;                       // of the request, as its answer's header has it
  std::shared_ptr<AnswerThread> large;  // writes large answers; null: the engine's thread does
};

// Returns at once; the answer comes from the engine's thread. A client that goes away ends it.
void Generate(openai::Kind kind, const HttpRequest& http, const GenerateContext& context,
              std::shared_ptr<HttpResponder> responder);

// The model that a request names, with the adapter noted in the request.
absl::StatusOr<std::shared_ptr<LoadedModel>> ModelOf(const ModelServer& models,
                                                     v1::GenerateRequest* request);

// Where neither the request nor the model's authors say a temperature, these APIs have 1.
void SetDefaultTemperature(const LoadedModel& model, v1::GenerateRequest* request);

// How an API writes an error.
using ErrorForm = std::string (*)(const openai::Error& error);

// An error as a whole answer, with the headers that belong to its status.
void SendError(HttpResponder& responder, const openai::Error& error,
               HttpResponder::Headers headers = {}, ErrorForm form = &openai::ToJson);
void SendError(HttpResponder& responder, const absl::Status& status,
               ErrorForm form = &openai::ToJson);

}  // namespace espalier
