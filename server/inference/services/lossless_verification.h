// Carries a VerifyLosslessRequest out: serving/lossless with models of the artifact store.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "base/clock.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Called before the models are loaded and between the steps of the checks; an error ends them.
using LosslessListener = std::function<absl::Status(const v1::LosslessProgress&)>;

// Loads the models as Serve would, checks them, and unloads them. InvalidArgument names the field;
// a check that failed is part of the report.
absl::StatusOr<v1::LosslessReport> RunLosslessVerification(const v1::VerifyLosslessRequest& request,
                                                    ModelServer* models, const Clock& clock,
                                                    const LosslessListener& listener);

}  // namespace espalier
