#include "server/http/route_context.h"

#include <utility>

namespace espalier {

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelOf(const ModelServer& models,
                                                     v1::GenerateRequest* request) {
  absl::StatusOr<ModelServer::Target> target = models.Resolve(request->model());
  if (!target.ok()) return target.status();
  request->set_adapter(target->adapter);
  return std::move(target->model);
}

void SetDefaultTemperature(const LoadedModel& model, v1::GenerateRequest* request) {
  if (!request->sampling().has_temperature() &&
      !model.description.sampling_defaults().has_temperature()) {
    request->mutable_sampling()->set_temperature(1);
  }
}

}  // namespace espalier
