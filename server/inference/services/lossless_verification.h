// Executes a VerifyLosslessRequest: runs serving/lossless on artifacts of the store.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Called before loading and between steps of the checks; an error ends them.
using LosslessListener = std::function<absl::Status(const v1::LosslessProgress&)>;

// Loads the models as Serve does, checks them, and unloads them. Returns InvalidArgument naming the
// field; failed checks are part of the report.
absl::StatusOr<v1::LosslessReport> RunLosslessVerification(const v1::VerifyLosslessRequest& request,
                                                           ModelServer* models, const Clock& clock,
                                                           const LosslessListener& listener);

}  // namespace espalier
