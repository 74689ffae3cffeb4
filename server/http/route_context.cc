#include "server/http/route_context.h"

#include <utility>

#include "server/http/added_headers.h"
#include "server/inference/requests/schema_warnings.h"

namespace espalier {

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelOf(const RouteContext& context,
                                                     v1::GenerateRequest* request) {
  absl::StatusOr<ModelServer::Target> target =
      context.models->Resolve(request->model(), context.caller);
  if (!target.ok()) return target.status();
  request->set_adapter(target->adapter);
  request->set_cache_salt(context.models->PrefixSalt(context.authorization, request->cache_salt()));
  return std::move(target->model);
}

void SetDefaultTemperature(const LoadedModel& model, v1::GenerateRequest* request) {
  if (!request->sampling().has_temperature() &&
      !model.description.sampling_defaults().has_temperature()) {
    request->mutable_sampling()->set_temperature(1);
  }
}

std::shared_ptr<HttpResponder> WithSchemaWarnings(std::shared_ptr<HttpResponder> responder,
                                                  const v1::GenerateRequest& request) {
  std::string warning = WarningHeader(SchemaWarnings(request));
  if (warning.empty()) return responder;
  return WithHeaders(std::move(responder), {{kWarningHeader, std::move(warning)}});
}

}  // namespace espalier
