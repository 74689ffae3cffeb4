// The stream of steps of a served model's rank.
#pragma once

#include <grpcpp/support/sync_stream.h>

#include "absl/status/status.h"
#include "espalier/v1/worker.pb.h"
#include "worker/serving_job.h"

namespace espalier {

using StepStream = grpc::ServerReaderWriter<v1::ServingResult, v1::ServingStep>;

// Runs the steps that arrive, and sends the results of the rank that has the logits. Returns OK
// when the stream ends, or the error of a step.
absl::Status ServeSteps(ServingJob& job, StepStream* stream);

}  // namespace espalier
