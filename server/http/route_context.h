// What the routes that generate share.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/net/caller.h"
#include "espalier/v1/inference.pb.h"
#include "server/http/http_server.h"
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
  std::string authorization;  // header of the request
  Caller caller;
};

// Returns the model that `request` names. Records the adapter in the request, if the name is an
// adapter's, and ModelServer::PrefixSalt.
absl::StatusOr<std::shared_ptr<LoadedModel>> ModelOf(const RouteContext& context,
                                                     v1::GenerateRequest* request);

// Sets temperature 1, as these APIs do, if neither the request nor the model's
// generation_config.json has one.
void SetDefaultTemperature(const LoadedModel& model, v1::GenerateRequest* request);

// Returns a responder whose answer tells what of the request's schemas it ignores (SchemaWarnings).
std::shared_ptr<HttpResponder> WithSchemaWarnings(std::shared_ptr<HttpResponder> responder,
                                                  const v1::GenerateRequest& request);

}  // namespace espalier
